"""The README's main job, twice: LACO at 1 % against no compression, on Fashion-MNIST.

GRADWIRE_DEMO_EPOCHS (default 2; the full form is 4) is how long both train.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

from harness import ClusterTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER = ROOT / "tools" / "examples" / "fashion_mnist.py"
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
EPOCHS = int(os.environ.get("GRADWIRE_DEMO_EPOCHS", "2"))
PATIENCE = 200 * EPOCHS  # seconds
LINE = re.compile(r"\[0\] epoch \d+ accuracy ([\d.]+) .*wire_bytes (\d+) raw_bytes (\d+)")


class Demo(ClusterTest):
    def train(self, codec):
        command = [os.environ["GRADWIRE_COMMAND"], "run", "-n", "2", "-l", "2", "--codec", codec,
                   "--daemon", os.environ["GRADWIRED"], "--set", "compression.density=0.01",
                   "--set", "compression.warm_start_steps=40", "--",
                   sys.executable, str(TRAINER), "--model", "cnn", "--epochs", str(EPOCHS), "--seed", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        print(f"--- {codec}\n{done.stdout}", flush=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        epochs = [(float(a), int(wire), int(raw)) for a, wire, raw in LINE.findall(done.stdout)]
        self.assertEqual(len(epochs), EPOCHS, done.stdout)
        return epochs

    def test_laco_at_one_per_cent_trains_as_well_and_sends_little(self):
        if not DATA.is_dir():
            self.skipTest(f"{DATA} is not there; install dataset-fashion-mnist")
        laco = self.train("laco")
        none = self.train("none")
        self.assertGreaterEqual(laco[-1][0], none[-1][0] - 1.0, "accuracy, per cent")
        wire = sum(epoch[1] for epoch in laco)
        raw = sum(epoch[2] for epoch in laco)
        self.assertGreaterEqual(raw / wire, 25, "over the whole run")
        # The warm start takes 160 operations; an epoch has 234.
        self.assertGreaterEqual(laco[-1][2] / laco[-1][1], 60, "after the warm start")


if __name__ == "__main__":
    unittest.main()
