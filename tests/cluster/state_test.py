"""The compression state in a checkpoint: real daemons end, and training goes on with others as if they had not."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from harness import COMMAND, ClusterTest

HERE = pathlib.Path(__file__).resolve().parent
SETTINGS = ["compression.density=0.02", "compression.warm_start_steps=2"]
FIRST, LAST = 7, 12  # the checkpoint, in the middle of the warm start; and the end


class State(ClusterTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="gradwire-state-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def train(self, nodes, first, last, *todo, codec="laco"):
        """Fresh daemons, two ranks on each; what the ranks printed, by rank."""
        command = [COMMAND, "run", "-n", str(nodes), "-l", "2", "--codec", codec]
        for setting in SETTINGS:
            command += ["--set", setting]
        command += ["--", sys.executable, "-B", str(HERE / "state_trainer.py"), self.folder, str(first), str(last), *todo]
        package = str(HERE.parents[1] / "client" / "python")
        environment = dict(os.environ, PYTHONPATH=package,
                           GRADWIRE_LIBRARY=os.path.join(os.environ["GRADWIRE_CLIENT_DIR"], "libgradwire.so.0"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = {rank: [] for rank in range(2 * nodes)}
        for rank, line in re.findall(r"^\[(\d+)\] (.*)$", done.stdout, re.MULTILINE):
            said[int(rank)].append(line)
        return said

    def steps(self, said):
        """The hashes of the steps, the same on all ranks."""
        steps = {tuple(line for line in lines if line.startswith("step ")) for lines in said.values()}
        self.assertEqual(len(steps), 1, said)
        steps = list(steps.pop())
        self.assertTrue(steps, said)
        return steps

    def test_training_goes_on_bit_for_bit_after_everything_has_ended(self):
        straight = self.steps(self.train(2, 0, LAST))
        self.assertEqual(len(straight), LAST)
        before = self.train(2, 0, FIRST, "save")
        self.assertEqual(self.steps(before), straight[:FIRST])
        states = [next(line for line in before[rank] if line.startswith("state ")) for rank in range(4)]
        self.assertEqual((states[0], states[2]), (states[1], states[3]))  # one state a node
        self.assertNotEqual(states[0].split()[2], states[2].split()[2])
        self.assertEqual(self.steps(self.train(2, FIRST, LAST, "load")), straight[FIRST:])
        # Without the state it goes on, but as something else from the first step on.
        for state in pathlib.Path(self.folder).glob("state.*"):
            state.unlink()
        without = self.steps(self.train(2, FIRST, LAST, "load"))
        self.assertEqual([line.split()[:2] for line in without], [line.split()[:2] for line in straight[FIRST:]])
        self.assertNotEqual(without[0], straight[FIRST])

    def test_states_of_fewer_nodes_are_taken_and_a_late_load_is_refused(self):
        self.train(1, 0, 3, "save")
        parameters = pathlib.Path(self.folder, "parameters")
        checkpoint = parameters.read_bytes()
        said = self.train(2, 3, 5, "load", "save", "late")
        steps = self.steps(said)
        self.assertEqual(len(steps), 2)
        pathlib.Path(self.folder, "state.0").unlink()
        pathlib.Path(self.folder, "state.1").unlink()
        parameters.write_bytes(checkpoint)
        without = self.steps(self.train(2, 3, 5, "load"))
        self.assertNotEqual(without[0], steps[0])  # what was loaded has been used
        for lines in said.values():
            self.assertRegex(lines[-1], "late bucket 'everything' exists.*before buckets are created")


if __name__ == "__main__":
    unittest.main()
