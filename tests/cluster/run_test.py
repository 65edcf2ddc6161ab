"""`gradwire run` with `gradwire bench`: every codec, several shapes, small and large, results verified."""
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time
import unittest

from harness import COMMAND, ClusterTest


class RunBench(ClusterTest):
    def bench(self, nodes, local_ranks, sizes, *options, codec="none", settings=(), patience=100):
        command = [COMMAND, "run", "-n", str(nodes), "-l", str(local_ranks), "--codec", codec]
        for setting in settings:
            command += ["--set", setting]
        command += ["--", COMMAND, "bench", "--json", "--verify", "--sizes", sizes, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("gradwired on node0: healthy", done.stdout)
        text = "\n".join(line[4:] for line in done.stdout.splitlines() if line.startswith("[0] "))
        document = json.loads(text)
        self.assertEqual((document["world"], document["nodes"]), (nodes * local_ranks, nodes))
        self.assertEqual(len(document["results"]), len(sizes.split(",")))
        for result in document["results"]:
            self.assertTrue(result["verified"], result)
        return document["results"]

    def test_every_codec_on_two_nodes_with_two_ranks(self):
        for codec in ("none", "fp16", "bf16", "l8", "int8", "int4", "onebit", "sign", "lads", "laco", "topk", "dropping"):
            with self.subTest(codec=codec):
                results = self.bench(2, 2, "4,252,4KiB,262148,1MiB", "--iterations", "6", "--codec", codec, codec=codec)
                self.assertEqual([result["codec"] for result in results], [codec] * 5)

    def test_every_codec_on_four_nodes(self):
        for codec in ("none", "l8", "lads", "laco"):
            with self.subTest(codec=codec):
                self.bench(4, 1, "4,4KiB,262148", "--iterations", "6", "--layers", "3" if codec == "laco" else "1",
                           codec=codec)

    def test_one_node_alone_and_three_nodes(self):
        self.bench(1, 3, "4KiB,100000", "--iterations", "3", codec="laco")
        self.bench(3, 1, "4KiB,100000", "--iterations", "3", codec="laco")

    def test_exact_buckets_ignore_the_policy(self):
        (result,) = self.bench(2, 1, "1MiB", "--exact", "--iterations", "3", codec="laco")
        self.assertEqual(result["codec"], "none")

    def test_the_ratio_is_that_of_the_codec(self):
        (none,) = self.bench(2, 1, "1MiB", "--iterations", "4")
        self.assertAlmostEqual(none["ratio"], 1.0, delta=0.05)
        (l8,) = self.bench(2, 1, "1MiB", "--iterations", "4", codec="l8")
        self.assertAlmostEqual(l8["ratio"], 4.0, delta=0.2)
        (laco,) = self.bench(2, 1, "1MiB", "--iterations", "10", "--warmup", "10", codec="laco",
                             settings=["compression.warm_start_steps=0", "compression.density=0.01"])
        self.assertGreater(laco["ratio"], 40)

    def test_25_million_elements_on_two_nodes_with_two_ranks(self):
        for codec in ("none", "laco"):
            with self.subTest(codec=codec):
                self.bench(2, 2, "100000000", "--iterations", "2", "--warmup", "0", codec=codec, patience=200)

    def test_25_million_elements_on_four_nodes(self):
        for codec in ("l8", "lads"):
            with self.subTest(codec=codec):
                self.bench(4, 1, "100000000", "--iterations", "2", "--warmup", "0", codec=codec, patience=200)


def listening_ports(pid):
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(entry)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.3).close()
        return True
    except (TimeoutError, ConnectionError):
        return False


class RunSeenFromOutside(ClusterTest):
    def test_status_finds_a_running_run_and_its_daemons_are_quiet(self):
        folder = tempfile.TemporaryDirectory(prefix="gw-")
        self.addCleanup(folder.cleanup)
        environment = dict(os.environ, TMPDIR=folder.name)
        environment.pop("GRADWIRE_RUNTIME_DIR", None)
        command = [COMMAND, "run", "-n", "2", "--keep", "--", "sh", "-c",
                   "gradwire bench --sizes 64KiB --iterations 20 && while [ ! -e $TMPDIR/seen ]; do sleep 0.05; done"]
        # Into a file: nobody reads while the run goes on, and a full pipe would stop it.
        messages = tempfile.TemporaryFile("w+")
        self.addCleanup(messages.close)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=messages)
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.terminate)

        def look():
            done = subprocess.run([COMMAND, "status", "--json"], env=environment, capture_output=True, text=True)
            daemons = json.loads(done.stdout)["daemons"]
            seen = [daemon for daemon in daemons if daemon["state"] == "healthy" and daemon["jobs"]
                    and daemon["jobs"][0]["state"] == "ended"]
            return seen if len(seen) == 2 else None

        deadline = time.monotonic() + 30
        daemons = None
        while daemons is None and time.monotonic() < deadline:
            time.sleep(0.1)
            daemons = look()
        self.assertIsNotNone(daemons, "both daemons of the run with their ended job")
        for daemon in daemons:
            (job,) = daemon["jobs"]
            self.assertEqual(job["name"], "run")
            self.assertEqual([rank["late_mean_seconds"] for rank in job["ranks"]], [0], "one rank a node is never late")
            # No job is left: its control port answers, that of UCX, which a few bytes would end, does not.
            quiet = time.monotonic() + 30
            while True:
                answering = sorted(map(answers, listening_ports(daemon["pid"])))
                if answering == [False, True] or time.monotonic() > quiet:
                    break
                time.sleep(0.1)
            self.assertEqual(answering, [False, True], daemon["node"])
        pathlib.Path(folder.name, "seen").touch()
        code = process.wait(30)
        messages.seek(0)
        self.assertEqual(code, 0, messages.read())
        nodes = sorted(pathlib.Path(folder.name).glob("gradwire-run.*/node*"))
        self.assertEqual([node.name for node in nodes], ["node0", "node1"])
        for node in nodes:
            log = (node / "gradwired.log").read_text()
            self.assertIn("event=started", log)
            self.assertNotIn("socket_group", log)
            done = subprocess.run([COMMAND, "status", "--json", "--runtime-dir", str(node)], capture_output=True,
                                  text=True)
            self.assertEqual(json.loads(done.stdout)["daemons"][0]["state"], "stopped")
            self.assertEqual(done.returncode, 3)


if __name__ == "__main__":
    unittest.main()
