"""The gradwire command from outside: arguments, exit codes, and that `run` cleans up whatever happens.

`run` starts fake_daemon.py, which holds a counters page and a socket and does nothing else.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

COMMAND = os.environ["GRADWIRE_COMMAND"]
HERE = pathlib.Path(__file__).parent
PATIENCE = 30


def alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter: it went between open and read
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.02)


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gw-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.daemon = self.folder / "gradwired"
        self.daemon.write_text(f"#!/bin/sh\nexec {sys.executable} -B {HERE}/fake_daemon.py \"$@\"\n")
        self.daemon.chmod(0o755)
        self.environment = dict(os.environ, TMPDIR=str(self.folder), NOTES=str(self.folder))

    def gradwire(self, *arguments):
        return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True,
                              env=self.environment, timeout=PATIENCE)

    def run_ranks(self, script, *options, nodes=1):
        return self.gradwire("run", "-n", nodes, "--daemon", self.daemon, *options, "--", "sh", "-c", script)

    def left_over(self):
        return list(self.folder.glob("gradwire-run.*"))


class Usage(Base):
    def test_wrong_usage_is_2(self):
        for arguments in ([], ["nonsense"], ["run"], ["run", "-n", "2"], ["run", "-n", "0", "--", "true"],
                          ["run", "-n", "1", "--set", "novalue", "--", "true"], ["status", "--", "x"],
                          ["status", "--nonsense"], ["bench", "--sizes", "7"], ["bench", "--sizes", "x"],
                          ["bench", "--codec", "zip"], ["status", "--count", "2"],
                          ["status", "--watch", "0"]):
            done = self.gradwire(*arguments)
            self.assertEqual(done.returncode, 2, (arguments, done.stderr))
            self.assertTrue(done.stderr, arguments)

    def test_a_wrong_command_says_which_there_are(self):
        self.assertIn("'bogus' is no command; there are: status, run, bench, version",
                      self.gradwire("bogus").stderr)
        self.assertIn("did you mean 'status'?", self.gradwire("statsu").stderr)
        self.assertIn("a command is missing; there are: status", self.gradwire().stderr)

    def test_a_wrong_setting_is_told_before_anything_starts(self):
        done = self.gradwire("run", "-n", 2, "--set", "a.b=3", "--set", "clocks.peer_timout=1s", "--", "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'a.b': unknown option", done.stderr)
        self.assertIn("did you mean", done.stderr)
        self.assertEqual(self.left_over(), [])

    def test_what_every_daemon_has_of_its_own_cannot_be_set(self):
        for name in ("node.name", "node.runtime_dir", "node.socket", "peers.listen", "peers.port", "peers.advertise",
                     "peers.key_file"):
            for daemon in ([], ["--daemon", self.daemon]):
                done = self.gradwire("run", "-n", 2, *daemon, "--set", f"{name}=/tmp/x", "--", "true")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"{name} is set by gradwire run itself", done.stderr)
        self.assertEqual(self.left_over(), [])

    def test_sizes_are_those_of_the_configuration(self):
        done = self.gradwire("bench", "--sizes", "4KiB,1KB")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'1KB' is not a size: 'KB' may mean 1000 or 1024; write KiB", done.stderr)
        help_text = self.gradwire("bench", "--help").stdout
        self.assertIn("--no-verify", help_text)
        self.assertNotIn("{false}", help_text)

    def test_help_and_version_are_0(self):
        for arguments in (["--help"], ["run", "--help"], ["status", "--help"], ["bench", "--help"],
                          ["version"], ["--version"]):
            done = self.gradwire(*arguments)
            self.assertEqual(done.returncode, 0, arguments)
            self.assertTrue(done.stdout, arguments)

    def test_status_without_a_daemon_is_3_also_as_json(self):
        done = self.gradwire("status", "--json", "--runtime-dir", self.folder)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(json.loads(done.stdout)["daemons"][0]["state"], "absent")

    def test_bench_knows_every_codec(self):
        for codec in ("none", "fp16", "sign", "dropping", "mixed"):
            self.assertEqual(self.gradwire("bench", "--codec", codec).returncode, 1, codec)  # there is no daemon

    def test_bench_without_a_daemon_says_so(self):
        self.environment.update(GRADWIRE_SOCKET=str(self.folder / "none.sock"), RANK="0", WORLD_SIZE="1")
        done = self.gradwire("bench")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none.sock", done.stderr)


class Watch(Base):
    """With fake daemons, which have no jobs."""

    def test_looks_again_until_the_count_and_appends(self):
        done = self.gradwire("status", "--watch", 0.1, "--count", 3, "--runtime-dir", self.folder)
        self.assertEqual(done.returncode, 3)
        blocks = done.stdout.split("\n\n")
        self.assertEqual(len(blocks), 3, done.stdout)
        for block in blocks:
            self.assertTrue(block.startswith("gradwired in "), done.stdout)
        self.assertNotIn("\x1b", done.stdout)

    def test_json_is_one_document_a_line(self):
        done = self.gradwire("status", "--watch", 0.1, "--count", 2, "--json", "--runtime-dir", self.folder)
        documents = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([document["schema_version"] for document in documents], [2, 2])

    def test_ctrl_c_ends_it_with_0(self):
        process = subprocess.Popen([COMMAND, "status", "--watch", "100", "--runtime-dir", str(self.folder)],
                                   stdout=subprocess.PIPE, text=True, env=self.environment)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_an_unknown_object_is_4_with_what_there_is(self):
        done = self.run_ranks('gradwire status --job x; echo "code $?"')
        self.assertIn("[0] code 4", done.stdout.splitlines())
        self.assertIn("[0] gradwire status: no job 'x' here; there are: none", done.stderr.splitlines())


class Run(Base):
    def test_ranks_have_their_places_and_marks(self):
        done = self.run_ranks('echo "$GRADWIRE_RANK of $WORLD_SIZE on $GROUP_RANK:$LOCAL_RANK"; echo e >&2',
                              "-l", 2, nodes=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        for rank in range(4):
            self.assertIn(f"[{rank}] {rank} of 4 on {rank // 2}:{rank % 2}", lines)
            self.assertIn(f"[{rank}] e", done.stderr.splitlines())
        self.assertIn("gradwired on node1: healthy", done.stdout)
        self.assertEqual(self.left_over(), [])

    def test_ranks_find_the_command_and_it_finds_the_daemons(self):
        done = self.run_ranks('gradwire status && echo "$PATH"', nodes=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[0] gradwired on node0: healthy", done.stdout)
        self.assertIn("[1] gradwired on node1: healthy", done.stdout)
        self.assertIn(":" + os.environ["PATH"], done.stdout)

    def test_ranks_find_the_library_and_the_package(self):
        done = self.run_ranks(f'{sys.executable} -c "import ctypes, gradwire; '
                              'ctypes.CDLL(\'libgradwire.so.0\'); print(gradwire.__name__)"')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[0] gradwire", done.stdout.splitlines())

    def test_settings_reach_every_daemon_in_order(self):
        done = self.run_ranks("true", "--codec", "l8", "--set", "a.b=1", "--set", "a.b=2", "--keep", nodes=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        (folder,) = self.left_over()
        for node in ("node0", "node1"):
            log = (folder / node / "gradwired.log").read_text()
            self.assertIn("settings: compression.codec=l8 plan.bypass=never a.b=1 a.b=2", log)
        self.assertEqual((folder / "key").stat().st_mode & 0o777, 0o600)
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)

    def test_the_worst_rank_gives_the_code_and_the_others_are_ended(self):
        started = time.monotonic()
        done = self.run_ranks('[ $RANK = 1 ] && exit 7; sleep 100', "--grace", 0.2, nodes=3)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertLess(time.monotonic() - started, PATIENCE)
        self.assertIn("rank 1 exited with code 7", done.stderr)

    def test_a_signal_is_128_plus_its_number(self):
        self.assertEqual(self.run_ranks("kill -9 $$").returncode, 137)

    def test_a_rank_that_ignores_sigterm_is_killed(self):
        done = self.run_ranks('[ $RANK = 1 ] && exit 3; trap "" TERM; while :; do sleep 0.1; done',
                              "--grace", 0.1, nodes=2)
        self.assertEqual(done.returncode, 3)

    def test_a_command_that_is_not_there_is_125(self):
        done = self.gradwire("run", "-n", 1, "--daemon", self.daemon, "--", "/no/such/program")
        self.assertEqual(done.returncode, 125)
        self.assertIn("/no/such/program", done.stderr)
        self.assertEqual(self.left_over(), [])

    def test_a_daemon_that_does_not_start_is_told_with_its_log(self):
        done = self.run_ranks("true", "--set", "fake.fail=yes")
        self.assertEqual(done.returncode, 125)
        self.assertIn("node0: fake daemon: told to fail", done.stderr)
        self.assertEqual(self.left_over(), [])

    def test_a_daemon_that_ends_while_others_start_ends_the_waiting(self):
        done = self.run_ranks("true", "--set", "fake.mute_node=node0", "--set", "fake.fail_node=node1", nodes=2)
        self.assertEqual(done.returncode, 125)
        self.assertIn("node1: fake daemon: told to fail", done.stderr)
        self.assertNotIn("is not ready after", done.stderr)
        self.assertEqual(self.left_over(), [])

    def test_a_daemon_that_dies_ends_the_run(self):
        done = self.run_ranks("sleep 100", "--set", "fake.die_after=0.5", "--grace", 0.1)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("the daemon of node0", done.stderr)

    def test_leftovers_of_a_rank_are_ended_even_in_their_own_session(self):
        self.run_ranks('setsid sh -c "echo \\$\\$ > $NOTES/stray; sleep 100" & while [ ! -s $NOTES/stray ]; '
                       'do sleep 0.02; done')
        stray = int((self.folder / "stray").read_text())
        wait_until(lambda: not alive(stray), "the stray process ends")


class RunEndsEarly(Base):
    """The command is stopped in some way while a rank sleeps: no process and no folder may stay."""

    def start(self):
        process = subprocess.Popen(
            [COMMAND, "run", "-n", "2", "--daemon", str(self.daemon), "--", "sh", "-c",
             "sleep 200 & echo $$ $! >> $NOTES/pids; wait"],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        pids = self.folder / "pids"
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 4, "the ranks run")
        self.pids = [int(pid) for pid in pids.read_text().split()]
        for daemon in self.folder.glob("gradwire-run.*/node*/pid"):
            self.pids.append(int(daemon.read_text()))
        self.assertEqual(len(self.pids), 6)
        return process

    def check_clean(self):
        for pid in self.pids:
            wait_until(lambda: not alive(pid), f"process {pid} ends")
        wait_until(lambda: not self.left_over(), "the folder is removed")

    def test_interrupted(self):
        process = self.start()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE), 130)
        self.check_clean()

    def test_terminated(self):
        process = self.start()
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 143)
        self.check_clean()

    def test_killed(self):
        process = self.start()
        process.kill()
        process.wait(PATIENCE)
        self.check_clean()

    def test_its_worker_crashed(self):
        process = self.start()
        (worker,) = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        self.assertEqual(process.wait(PATIENCE), 125)
        self.check_clean()


if __name__ == "__main__":
    unittest.main()
