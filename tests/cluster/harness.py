"""Real daemons and ranks for black-box tests: started by the test, ended by process id, whatever happens.

Needs GRADWIRED, GRADWIRE_COMMAND and CLUSTER_RANK in the environment: the paths of the three programs.
"""
import json
import os
import pathlib
import queue
import random
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import netlab

GRADWIRED = os.environ.get("GRADWIRED", "")
COMMAND = os.environ.get("GRADWIRE_COMMAND", "")
RANK = os.environ.get("CLUSTER_RANK", "")
START_PATIENCE = 30  # seconds; a loaded machine
WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"]  # the test's death is the child's


def free_port():
    """A port below the range that the system gives to connections."""
    for _ in range(200):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port between 20000 and 31999")


def rank_environment(socket_path, rank, world, job, run_id="0", rendezvous="", **more):
    """What a launcher would say to a rank, and nothing that the launcher of the test has said to us."""
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("GRADWIRE_", "SLURM_", "OMPI_", "TORCHELASTIC_"))}
    environment.update(GRADWIRE_SOCKET=str(socket_path), GRADWIRE_JOB=job, GRADWIRE_RUN_ID=run_id,
                       GRADWIRE_RENDEZVOUS=rendezvous, GRADWIRE_RANK=str(rank), GRADWIRE_WORLD=str(world))
    environment.update(more)
    return environment


def end_rank(process):
    if process.poll() is None:
        process.kill()
    process.wait()


def status_text(runtime_dir, *options):
    """(exit code, standard output) of `gradwire status`."""
    done = subprocess.run([COMMAND, "status", "--runtime-dir", str(runtime_dir), *options],
                          capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout


def status(runtime_dir, *options):
    """(exit code, what the JSON of `gradwire status` says of this daemon)."""
    code, text = status_text(runtime_dir, "--json", *options)
    return code, json.loads(text)["daemons"][0]


def wait_status(runtime_dir, holds, seconds):
    """The first (exit code, report) for which `holds(report)`; the page is written a few times a second."""
    deadline = time.monotonic() + seconds
    while True:
        code, report = status(runtime_dir)
        if holds(report):
            return code, report
        if time.monotonic() > deadline:
            raise AssertionError(f"{runtime_dir} does not show what it should: {json.dumps(report, indent=1)}")
        time.sleep(0.05)


class Output:
    """The lines of a process, as they come."""

    def __init__(self, stream):
        self.lines = []
        self._queue = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream):
        with stream:
            for line in stream:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, pattern, seconds):
        """The first line not yet read that matches; AssertionError at the end of output or time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._queue.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"no line like {pattern!r} within {seconds} s; so far: {self.lines}") from None
            if line is None:
                raise AssertionError(f"the output ended without a line like {pattern!r}: {self.lines}")
            self.lines.append(line)
            if re.search(pattern, line):
                return line

    def all_lines(self):
        """What has come so far, waited for or not."""
        return self.lines + [line for line in list(self._queue.queue) if line is not None]


class Rank:
    """cluster_rank with its steps; errors are lines "error STEP SECONDS STATUS: SENTENCE"."""

    def __init__(self, environment, steps, command=None):
        self.process = subprocess.Popen(WITH_US + (command or [RANK, *steps]), env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = Output(self.process.stdout)

    def wait_ok(self, step, seconds=START_PATIENCE):
        line = self.output.wait_for(rf"^(ok {re.escape(step)}|error \S+) ", seconds)
        if line.startswith("error"):
            raise AssertionError(line)
        return line

    def wait_said(self, step, seconds=START_PATIENCE):
        """(seconds that the step took, what it printed)."""
        line = self.wait_ok(step, seconds)[len(f"ok {step} "):]
        took, _, said = line.partition(" ")
        return float(took), said

    def wait_error(self, seconds):
        """(step, seconds that the step took, status name, sentence)."""
        line = self.output.wait_for(r"^error ", seconds)
        match = re.fullmatch(r"error (\S+) ([\d.]+) (\w+): (.*)", line)
        if not match:
            raise AssertionError(f"not an error of the library: {line}")
        return match[1], float(match[2]), match[3], match[4]

    def wait_end(self, seconds=START_PATIENCE):
        code = self.process.wait(seconds)
        return code

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)


class Daemon:
    def __init__(self, cluster, index, settings, port=None):
        self.cluster = cluster
        self.index = index
        self.name = f"node{index}"
        self.folder = cluster.folder / self.name
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.address = cluster.addresses[index]
        self.port = port or free_port()
        self.socket = self.folder / "gradwired.sock"
        self.log = self.folder / "gradwired.log"
        config = self.folder / "gradwired.yaml"
        device = "lo" if self.address == "127.0.0.1" else "eth0"
        config.write_text(
            f"node: {{name: {self.name}, runtime_dir: {self.folder}, socket_mode: 0600}}\n"
            f"peers: {{listen: {self.address}, port: {self.port}, advertise: {self.address}, "
            f"key_file: {cluster.key}}}\n"
            f"transport: {{tls: 'tcp,self', devices: {device}}}\n")
        command = [*WITH_US, *cluster.prefixes[index], GRADWIRED, "--config", str(config)]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        cluster.test.addCleanup(self.end)

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self.log_text()}")
        if not (self.folder / "counters").exists():
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def log_text(self):
        return self.log.read_text(errors="replace")[-4000:]

    def wait_log(self, pattern, seconds):
        """The log's first line that matches."""
        deadline = time.monotonic() + seconds
        while True:
            for line in self.log.read_text(errors="replace").splitlines():
                if re.search(pattern, line):
                    return line
            if time.monotonic() > deadline:
                raise AssertionError(f"no line like {pattern!r} in the log of {self.name}: {self.log_text()}")
            time.sleep(0.02)

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def end(self):
        """SIGTERM must suffice; a daemon that needs SIGKILL fails the test."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"{self.name} did not end on SIGTERM: {self.log_text()}") from None

    def status(self, *options):
        return status(self.folder, *options)

    def status_text(self, *options):
        return status_text(self.folder, *options)

    def wait_status(self, holds, seconds):
        return wait_status(self.folder, holds, seconds)


class Cluster:
    """`nodes` daemons on 127.0.0.1, or on the hosts of a netlab."""

    def __init__(self, test, nodes, settings=None, lab=None):
        self.test = test
        temporary = tempfile.TemporaryDirectory(prefix="gwc-")
        test.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.key = self.folder / "key"
        self.key.write_text(secrets.token_hex(32) + "\n")
        self.key.chmod(0o600)
        self.addresses = [lab.address(i) if lab else "127.0.0.1" for i in range(nodes)]
        self.prefixes = [lab.prefix(i) if lab else [] for i in range(nodes)]
        # What is not about plans is about what the configuration says.
        self.settings = {"plan.algorithm": "ring", "plan.bypass": "never", **(settings or {})}
        self.jobs = 0
        self.daemons = [Daemon(self, i, self.settings) for i in range(nodes)]
        self._wait_until_ready(self.daemons)

    def _wait_until_ready(self, daemons):
        deadline = time.monotonic() + START_PATIENCE
        for daemon in daemons:
            while not daemon.ready():
                if time.monotonic() > deadline:
                    raise AssertionError(f"{daemon.name} is not ready: {daemon.log_text()}")
                time.sleep(0.02)

    def restart(self, index):
        """Over whatever the one before left behind, on the same port."""
        before = self.daemons[index]
        before.end()
        self.daemons[index] = Daemon(self, index, self.settings, before.port)
        self._wait_until_ready([self.daemons[index]])

    def environment(self, rank, world, node, job, **more):
        coordinator = self.daemons[0]
        return rank_environment(self.daemons[node].socket, rank, world, job,
                                rendezvous=f"{coordinator.address}:{coordinator.port}", **more)

    def start(self, steps, local_ranks=1, worlds=None, ranks=None, command=None, job=None, places=None, **more):
        """A job: a rank per node and local rank. `steps`: one list for all, or a function of the rank.

        `ranks` leaves others out; `worlds` gives a rank another idea of the world's size; `places` are the
        ranks' nodes, where they are not the same number on each; `job` is a name, else a new one."""
        self.jobs += 1
        places = places or [node for node in range(len(self.daemons)) for _ in range(local_ranks)]
        world = len(places)
        out = {}
        for rank, node in enumerate(places):
            if ranks is not None and rank not in ranks:
                continue
            own = steps(rank) if callable(steps) else steps
            environment = self.environment(rank, (worlds or {}).get(rank, world), node, job or f"job{self.jobs}",
                                           **more)
            out[rank] = Rank(environment, own, command)
            self.test.addCleanup(end_rank, out[rank].process)
        return out


class ClusterTest(unittest.TestCase):
    def setUp(self):
        missing = [name for name in ("GRADWIRED", "GRADWIRE_COMMAND", "CLUSTER_RANK") if not os.environ.get(name)]
        if missing:
            self.fail(f"not in the environment: {', '.join(missing)}")

    def wait_all_ok(self, ranks, step, seconds=START_PATIENCE):
        for rank in ranks.values():
            rank.wait_ok(step, seconds)

    def wait_until(self, holds, seconds, what):
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}")
            time.sleep(0.02)

    def wait_all_ended(self, ranks, seconds=START_PATIENCE):
        codes = {number: rank.wait_end(seconds) for number, rank in ranks.items()}
        if any(codes.values()):
            time.sleep(0.2)  # for their last lines
            self.fail(f"{codes}: {[rank.output.all_lines() for rank in ranks.values()]}")

    def expect_errors(self, ranks, seconds, statuses, culprit):
        """Every rank gets an error of one of `statuses` within `seconds`, whose sentence matches `culprit`."""
        deadline = time.monotonic() + seconds
        for number, rank in ranks.items():
            _, _, status, sentence = rank.wait_error(max(deadline - time.monotonic(), 0.01))
            self.assertIn(status, statuses, f"rank {number}: {sentence}")
            self.assertRegex(sentence, culprit, f"rank {number}: {status}")


class NetlabTest(ClusterTest):
    """On a network of its own: `hosts` hosts on links of `rate`. Skipped where there can be none."""

    hosts = 2
    rate = "1gbit"

    def setUp(self):
        super().setUp()
        reason = netlab.missing()
        if reason:
            self.skipTest(reason)
        self.lab = netlab.Netlab(self.hosts, self.rate)
        self.addCleanup(self.lab.close)
