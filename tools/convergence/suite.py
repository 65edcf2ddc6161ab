"""Runs trainings, several at a time, each in a process of its own with one thread."""
import json
import os
import signal
import subprocess
import sys
import threading
import time

import ring_lab
import store

HERE = os.path.dirname(os.path.abspath(__file__))


class Suite:
    program = os.path.join(HERE, "run.py")  # with --one SPEC KEY a child

    def __init__(self, results, library, jobs, deadline):
        self.results = results
        self.library = library
        self.jobs = jobs
        self.deadline = deadline
        self.skipped = {}  # by settings: why, or None
        self.failures = []
        self.printing = threading.Lock()
        self.stopping = False
        self.interrupted = False
        self.lock = threading.Lock()  # of children
        self.children = []

    def say(self, text):
        with self.printing:
            print(text, flush=True)

    def refused(self):
        return any(why is not None for why in self.skipped.values())

    def usable(self, run):
        """Whether this build knows the settings; says so once where it does not."""
        spec = run["spec"]
        settings = json.dumps([spec["nodes"], spec["algorithm"], spec["settings"], spec.get("rules", ())], sort_keys=True)
        if settings not in self.skipped:
            self.skipped[settings] = None
            try:
                rules, layers = spec.get("rules", ()), [("weight", 4096)]
                ring_lab.Ring(spec["nodes"], layers, spec["settings"], rules, self.library, spec["algorithm"]).close()
            except ring_lab.LabError as error:
                self.skipped[settings] = str(error)
                self.say(f"refused: {run['label']}: {error}")
        return self.skipped[settings] is None

    def do(self, make_plan):
        """Until nothing is left, time is up, or nothing but failures is left. True if all is there."""
        tried = set()
        while True:
            runs = [run for run in make_plan() if self.usable(run)]
            missing = [run for run in runs if self.results.get(run) is None]
            todo = [run for run in missing if self.results.key(run) not in tried]
            if not todo or self.stopping:
                return not missing
            tried.update(self.results.key(run) for run in todo)
            self.batch(todo, len(runs) - len(missing), len(runs))

    def batch(self, todo, done, total):
        waiting = list(todo)
        lock = threading.Lock()
        number = [done]

        def work():
            while not self.stopping:
                with lock:
                    fitting = [r for r in waiting if time.monotonic() + self.results.estimate(r) <= self.deadline]
                    if not fitting:
                        return
                    run = fitting[0]
                    waiting.remove(run)
                    number[0] += 1
                    spec = run["spec"]
                    name = f"run {number[0]} of {total}  {spec['task']} {run['label']}, seed {spec['seed']}"
                    rest = [run, *waiting]
                try:
                    self.one(run, name, lambda: sum(map(self.results.estimate, rest)) / self.jobs)
                except OSError as error:  # of the file of results: what follows would be lost, too
                    self.fail(name, f"{error}; the other trainings are ended")
                    self.stopping = True
                except Exception as error:  # a thread has nobody to tell
                    self.fail(name, f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
                if self.stopping:
                    self.kill()
        if waiting and not self.stopping:
            self.say(f"no time left for {len(waiting)} runs; start again to go on")

    def fail(self, name, why):
        self.failures.append(f"{name}: {why}")
        self.say(f"failed: {self.failures[-1]}")

    def start(self, run):
        """The child, or None where the suite is being stopped."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-B", self.program, "--one", json.dumps(run["spec"]), self.results.key(run)]
        environment = {**os.environ, "GRADWIRE_RING_LAB": self.library, "OMP_NUM_THREADS": "1"}
        with self.lock:
            if self.stopping:
                return None
            # Its stdin ends with this process, whatever ends that.
            child = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            self.children.append(child)
        return child

    def interrupt(self, *_):
        """A signal's handler: only asks, because an exception in a thread's join() would make it forget the thread."""
        self.interrupted = self.stopping = True

    def kill(self):
        with self.lock:
            for child in self.children:
                child.kill()

    def one(self, run, name, left):
        child = self.start(run)
        if child is None:
            return
        complaint = []
        reader = threading.Thread(target=lambda: complaint.extend(child.stderr.readlines()[-5:]), daemon=True)
        reader.start()
        result = None
        try:
            for line in child.stdout:
                message = self.message_of(line, complaint)
                if "epoch" in message:
                    self.tell(run, name, message, left())
                elif message:
                    result = message
            if result is None:
                child.kill()
        except BaseException:
            child.kill()
            raise
        finally:
            child.wait()
            reader.join()
            for pipe in (child.stdin, child.stdout, child.stderr):
                pipe.close()
            with self.lock:
                self.children.remove(child)
        if result is not None and (child.returncode == 0 or self.stopping):
            self.results.add(run, result)
        elif not self.stopping:
            self.fail(name, "".join(complaint).strip() or f"exit code {child.returncode}")

    @staticmethod
    def message_of(line, complaint):
        """{} of what is not a child's message."""
        try:
            message = json.loads(line)
            if isinstance(message, dict):
                return message
        except ValueError:
            pass
        complaint.append(line)
        return {}

    def tell(self, run, name, message, left):
        epochs = run["spec"]["epochs"]
        eta = max(0.0, left - message["epoch"] / epochs * self.results.estimate(run) / self.jobs)
        figure = f"{message['metric']:.2f}, about {eta / 60:.0f} min left"
        self.say(f"{name}: epoch {message['epoch']}/{epochs} {figure}")


def die_with_parent():
    """Ends this process when its stdin does."""

    def watch():
        while os.read(0, 1):  # sys.stdin has a lock that would be held when this process ends by itself
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def one(spec, expected):
    """The child: prints JSON lines, the last is the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent ends its children
    die_with_parent()
    import training

    library = ring_lab.find_library()
    if store.Results(None, library).key_of(spec) != expected:
        raise SystemExit("the library or the code has changed since the suite began; start it again")
    result = training.train(
        spec,
        library,
        lambda epoch, metric: print(json.dumps({"epoch": epoch, "metric": metric}), flush=True),
    )
    print(json.dumps(result), flush=True)
