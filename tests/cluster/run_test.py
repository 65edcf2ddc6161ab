"""`gradwire run` with `gradwire bench`: every codec, several shapes, small and large, results verified."""
import json
import subprocess
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
        for result in document["results"]:
            self.assertTrue(result["verified"], result)
        return document["results"]

    def test_every_codec_on_two_nodes_with_two_ranks(self):
        for codec in ("none", "l8", "lads", "laco"):
            with self.subTest(codec=codec):
                results = self.bench(2, 2, "4,252,4KiB,262148,1MiB", "--iterations", "6", codec=codec)
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


if __name__ == "__main__":
    unittest.main()
