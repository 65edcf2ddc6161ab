"""A gradwired of one node under a service manager that the test plays, and threads of it that stand still."""
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cluster"))

import harness  # noqa: E402

GRADWIRED = os.environ.get("GRADWIRED", "")
FILLER = "X_FILLER=1"
PATIENCE = 30  # seconds; a loaded machine


class Manager:
    """The socket that a service manager names in NOTIFY_SOCKET."""

    def __init__(self, path, abstract=False):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.name = f"@{path}" if abstract else str(path)
        self.socket.bind(f"\0{path}" if abstract else str(path))
        self.messages = []

    def next(self, seconds):
        """The next message; None when the time is over."""
        self.socket.settimeout(max(seconds, 0.001))
        try:
            message = self.socket.recv(4096).decode()
        except TimeoutError:
            return None
        self.messages.append(message)
        return message

    def wait_for(self, wanted, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self.next(deadline - time.monotonic())
            if message is not None and any(line.startswith(wanted) for line in message.split("\n")):
                return message
        raise AssertionError(f"no {wanted!r} within {seconds} s: {self.messages}")

    def fill(self):
        """Leaves no room for a message of anybody."""
        while self._fill_from_one() > 0:
            pass

    def _fill_from_one(self):
        """How many went before either this sender's memory was used up or the queue full."""
        sent = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            try:
                while True:
                    other.sendto(FILLER.encode(), self.socket.getsockname())
                    sent += 1
            except BlockingIOError:
                return sent

    def drain(self):
        """The messages that are there, without those of fill()."""
        found = []
        while (message := self.next(0)) is not None:
            found += [message] if message != FILLER else []
        return found

    def count(self, wanted, seconds):
        deadline = time.monotonic() + seconds
        found = 0
        while time.monotonic() < deadline:
            found += self.next(deadline - time.monotonic()) == wanted
        return found


class Service:
    """gradwired with a configuration file; ended by its process id, whatever happens."""

    def __init__(self, test, folder, name="a", config="", environment=None, stderr=None, settings=()):
        self.folder = pathlib.Path(folder)
        self.name = name
        self.runtime = self.folder / name
        self.socket = self.runtime / "gradwired.sock"
        self.page = self.runtime / "counters"
        self.log = self.folder / f"{name}.log"
        self.config = self.folder / f"{name}.yaml"
        self.port = harness.free_port()
        self.base = (f"node: {{name: {name}, runtime_dir: {self.runtime}, socket_mode: 0600}}\n"
                     f"peers: {{listen: 127.0.0.1, port: {self.port}}}\n"
                     "transport: {tls: 'tcp,self', devices: lo}\n")
        self.write_config(config)
        command = [*harness.WITH_US, GRADWIRED, "--config", str(self.config)]
        for setting in settings:
            command += ["--set", setting]
        environment = {**os.environ, **(environment or {})}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=stderr or log, env=environment)
        test.addCleanup(self.end)

    def write_config(self, more):
        self.config.write_text(self.base + more)

    def wait_ready(self, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}: {self.text()}")
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(self.socket)) == 0:
                    return self
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.text()}")

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_log(self, wanted, seconds=PATIENCE, after=0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.text()[after:].splitlines():
                if wanted in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no {wanted!r} in the log: {self.text()}")

    def rank(self, test, steps, rank=0, world=1, job="job", run_id="0"):
        started = harness.Rank(harness.rank_environment(self.socket, rank, world, job, run_id), steps)
        test.addCleanup(harness.end_rank, started.process)
        return started

    def wait_status(self, holds, seconds=PATIENCE):
        return harness.wait_status(self.runtime, holds, seconds)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def threads(self):
        """Names of the process's threads, by their ids."""
        found = {}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            found[(task / "comm").read_text().strip()] = int(task.name)
        return found


class StoppedThread:
    """Holds one thread of another process, as a thread is held that hangs in the kernel."""
    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, test, thread):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.thread = thread
        if self.libc.ptrace(self.SEIZE, thread, None, None) != 0:
            test.skipTest(f"a thread cannot be held here: ptrace: {os.strerror(ctypes.get_errno())}")
        self.libc.ptrace(self.INTERRUPT, thread, None, None)
        os.waitpid(thread, self.WALL)
        test.addCleanup(self.end)  # before that of the process, which would wait for a held thread for ever

    def release(self):
        self.libc.ptrace(self.DETACH, self.thread, None, None)

    def end(self):
        self.release()
        try:
            os.waitpid(self.thread, self.WALL | os.WNOHANG)
        except ChildProcessError:
            pass

    def reap(self):
        """After the process's end: the kernel keeps a traced thread until its tracer has looked."""
        try:
            os.waitpid(self.thread, self.WALL)
        except ChildProcessError:
            pass


class ServiceTest(harness.ClusterTest):
    def setUp(self):
        super().setUp()
        temporary = tempfile.TemporaryDirectory(prefix="gws-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def manager(self, abstract=False):
        manager = Manager(self.folder / "notify", abstract)
        self.addCleanup(manager.socket.close)
        return manager

    def managed(self, config="", watchdog_us=0, **more):
        """(manager, service) after READY=1."""
        manager = self.manager()
        environment = {"NOTIFY_SOCKET": manager.name}
        if watchdog_us:
            environment["WATCHDOG_USEC"] = str(watchdog_us)
        service = Service(self, self.folder, config=config, environment=environment, **more)
        manager.wait_for("READY=1")
        return manager, service

    def expect_end(self, service, code, seconds):
        started = time.monotonic()
        self.assertEqual(service.process.wait(PATIENCE), code, service.text())
        self.assertLess(time.monotonic() - started, seconds, service.text())


__all__ = ["GRADWIRED", "Manager", "PATIENCE", "Service", "ServiceTest", "StoppedThread", "harness", "signal"]
