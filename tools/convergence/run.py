#!/usr/bin/python3
"""Trains with every codec on rings in one process, and says whether training suffers.

    run.py [--budget 60]                  what is missing of the suite, then the verdicts; again to go on
    run.py --short [--tasks mlp cnn]      CI's form: coarse bounds, exit code 1 where one is missed
    run.py --report                       the tables of docs/benchmarks.md
    run.py --try mlp codec=laco density=0.01 warm_start_steps=10    one experiment, three seeds

Needs the library gradwire_ring_lab (built with the project), python3-torch, dataset-fashion-mnist and, for the text,
bible-kjv. Much slower without libopenblas0-serial. Every result is kept at once in build/convergence/results.jsonl,
with a hash of the settings, the code that trains and what the library makes of some gradients with these settings: what
has changed is trained again.
"""
import argparse
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import experiments
import report
import ring_lab

HERE = os.path.dirname(os.path.abspath(__file__))
CODE = ("tasks.py", "training.py", "corpus.py", "../examples/fashion_mnist.py")
GUESS = {"mlp": 4.0, "cnn": 7.0, "lm": 70.0}  # seconds an epoch where none was seen
ALL = tuple(experiments.BASES)


def file_hash(*paths):
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def torch_version():
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"


class Results:
    """The JSON-lines file. Thread-safe."""

    def __init__(self, path, library):
        self.path = path
        self.fingerprints = ring_lab.Fingerprints(library)
        self.code = file_hash(*(os.path.join(HERE, name) for name in CODE))
        self.torch = torch_version()
        self.lock = threading.Lock()
        self.by_key = {}
        self.seconds = dict(GUESS)
        try:
            with open(path) as file:
                for line in file:
                    self._take(line)
        except FileNotFoundError:
            pass

    def _take(self, line):
        try:
            result = json.loads(line)
            self.by_key[result["key"]] = result
            spec = result["spec"]
            if not spec.get("max_steps"):
                self.seconds[spec["task"]] = result["seconds"] / spec["epochs"]
        except (ValueError, KeyError, TypeError):
            pass  # a line that a full disk or a kill cut short

    def key(self, run):
        return self.key_of(run["spec"])

    def key_of(self, spec):
        """Changes with whatever could change the result."""
        text = json.dumps([spec, self.torch], sort_keys=True) + self.code + self.fingerprints.of(spec)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def get(self, run):
        return self.by_key.get(self.key(run))

    def metric(self, run):
        result = self.get(run)
        return result and result["metric"]

    def add(self, run, result):
        line = json.dumps({"key": self.key(run), "label": run["label"], "spec": run["spec"], **result})
        with self.lock:
            os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
            with open(self.path, "ab+") as file:
                if file.tell() > 0 and not self._ends_a_line(file):
                    line = "\n" + line  # after a line that was cut short
                file.write(line.encode() + b"\n")
            self._take(line)

    @staticmethod
    def _ends_a_line(file):
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

    def estimate(self, run):
        spec = run["spec"]
        full = self.seconds[spec["task"]] * spec["epochs"]
        return full if not spec.get("max_steps") else min(full, 0.1 * spec["max_steps"] * spec["epochs"])


class Suite:
    """Runs several trainings at a time, each in a process of its own with one thread."""

    def __init__(self, results, library, jobs, deadline):
        self.results = results
        self.library = library
        self.jobs = jobs
        self.deadline = deadline
        self.skipped = {}  # by settings: why, or None
        self.failures = []
        self.printing = threading.Lock()

    def say(self, text):
        with self.printing:
            print(text, flush=True)

    def usable(self, run):
        """Whether this build knows the settings; says so once where it does not."""
        settings = json.dumps(run["spec"]["settings"], sort_keys=True)
        if settings not in self.skipped:
            self.skipped[settings] = None
            try:
                layers = [("weight", 4096)]
                ring_lab.Ring(2, layers, run["spec"]["settings"], run["spec"].get("rules", ()), self.library).close()
            except ring_lab.LabError as error:
                self.skipped[settings] = str(error)
                self.say(f"skipped: {run['label']}: {error}")
        return self.skipped[settings] is None

    def do(self, make_plan):
        """Until nothing is left, time is up, or nothing but failures is left. True if all is there."""
        tried = set()
        while True:
            runs = [run for run in make_plan() if self.usable(run)]
            missing = [run for run in runs if self.results.get(run) is None]
            todo = [run for run in missing if self.results.key(run) not in tried]
            if not todo:
                return not missing
            tried.update(self.results.key(run) for run in todo)
            self.batch(todo, len(runs) - len(missing), len(runs))

    def batch(self, todo, done, total):
        waiting = list(todo)
        lock = threading.Lock()
        number = [done]

        def work():
            while True:
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
                self.one(run, name, lambda: sum(map(self.results.estimate, rest)) / self.jobs)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if waiting:
            self.say(f"no time left for {len(waiting)} runs; start again to go on")

    def one(self, run, name, left):
        spec, pipe = run["spec"], subprocess.PIPE
        program = os.path.join(HERE, "run.py")
        command = [sys.executable, "-B", program, "--one", json.dumps(spec), self.results.key(run)]
        environment = {**os.environ, "GRADWIRE_RING_LAB": self.library, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        ) as child:
            complaint = []
            reader = threading.Thread(target=lambda: complaint.extend(child.stderr.readlines()[-3:]), daemon=True)
            reader.start()
            result = None
            try:
                for line in child.stdout:
                    message = json.loads(line)
                    if "epoch" in message:
                        done = message["epoch"] / spec["epochs"]
                        eta = max(0.0, left() - done * self.results.estimate(run) / self.jobs)
                        self.say(
                            f"{name}: epoch {message['epoch']}/{spec['epochs']} {message['metric']:.2f}, "
                            f"about {eta / 60:.0f} min left"
                        )
                    else:
                        result = message
            finally:
                if child.poll() is None and result is None:
                    child.kill()
            child.wait()
            reader.join()
        if result is None:
            self.failures.append(f"{name}: {''.join(complaint).strip() or f'exit code {child.returncode}'}")
            self.say(f"failed: {self.failures[-1]}")
        else:
            self.results.add(run, result)


def one(spec, expected):
    """The child: prints JSON lines, the last is the result."""
    import training

    library = ring_lab.find_library()
    if Results(os.devnull, library).key_of(spec) != expected:
        raise SystemExit("the library or the code has changed since the suite began; start it again")
    result = training.train(
        spec,
        library,
        lambda epoch, metric: print(json.dumps({"epoch": epoch, "metric": metric}), flush=True),
    )
    print(json.dumps(result), flush=True)


def usable_tasks(tasks):
    """Those whose data are here."""
    import corpus
    import tasks as definitions

    found = []
    for task in tasks:
        try:
            if task == "lm":
                corpus.read_verses()
            else:
                definitions.fashion_mnist.load(definitions.fashion_mnist.DATA, "test", 1)
            found.append(task)
        except (OSError, corpus.NoCorpus) as error:
            print(f"skipped: {task}: {error}", flush=True)
    return found


def warn_of_slow_products():
    import torch

    torch.set_num_threads(1)
    matrix = torch.ones(256, 256)
    matrix @ matrix
    started = time.monotonic()
    for _ in range(5):
        matrix @ matrix
    if time.monotonic() - started > 0.03:
        print("torch multiplies matrices slowly here: libopenblas0-serial is several times faster", flush=True)


def settings_of(words):
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise SystemExit(f"run.py: {word} is not NAME=VALUE")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def experiment(words):
    """--try's runs. lr, epochs, momentum and nodes are the task's; everything else is the codec's."""
    task, settings = words[0], settings_of(words[1:])
    if task not in experiments.BASES:
        raise SystemExit(f"run.py: task {task} does not exist; use one of {', '.join(ALL)}")
    changes = {name: settings.pop(name) for name in experiments.BASES[task] if name in settings}
    label = " ".join(words[1:])
    return [experiments.run(task, label, seed, settings, **changes) for seed in experiments.SEEDS]


def main():
    parser = argparse.ArgumentParser(description="Whether training suffers from compression")
    parser.add_argument("--budget", type=float, default=60, help="minutes, after which no run is begun")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trainings at a time")
    parser.add_argument("--tasks", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--seeds", type=int, nargs="+", default=experiments.SEEDS)
    parser.add_argument("--only", default="", help="only runs whose label contains this")
    place = os.path.normpath(os.path.join(ring_lab.ROOT, "build", "convergence", "results.jsonl"))
    parser.add_argument("--results", default=place, help="default: %(default)s")
    parser.add_argument("--short", action="store_true", help="a minute; exit code 1 if training suffers much")
    parser.add_argument("--report", action="store_true", help="print the tables of what is there, train nothing")
    parser.add_argument("--try", dest="experiment", nargs="+", metavar=("TASK", "NAME=VALUE"), help="an experiment")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(json.loads(options.one[0]), options.one[1])
        return 0
    library = ring_lab.find_library()
    scratch = tempfile.TemporaryDirectory() if options.short else None
    if scratch:
        options.results = os.path.join(scratch.name, "results.jsonl")
    results = Results(options.results, library)
    seeds = tuple(options.seeds)

    def make_plan():
        if options.short:
            return experiments.short_plan(tasks)
        if options.experiment:
            return experiment(options.experiment)
        return [r for r in experiments.plan(tasks, seeds, results.metric) if options.only in r["label"]]

    if options.report:
        tasks = options.tasks
        print(report.tables(make_plan(), results))
        return 0
    tasks = usable_tasks(options.tasks)
    warn_of_slow_products()
    suite = Suite(results, library, max(1, options.jobs), time.monotonic() + 60 * options.budget)
    complete = suite.do(make_plan)
    if options.short:
        bad = report.short_verdicts(make_plan(), results)
        return 1 if bad or suite.failures or not complete else 0
    print(report.tables(make_plan(), results))
    return 1 if suite.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ring_lab.LabError as error:
        sys.exit(f"run.py: {error}")
