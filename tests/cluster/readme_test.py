"""What README.md prints for a trainer and for a first daemon runs as printed, but for its places."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness import COMMAND, GRADWIRED, ClusterTest, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = pathlib.Path(os.environ.get("GRADWIRE_CLIENT_DIR", ""))
WEIGHTS = 'print("weights", hash(tuple(p.sum().item() for p in model.parameters())))\n'


def blocks():
    """The indented blocks, without their indentation."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", text):
        yield re.sub(r"(?m)^    ", "", block).strip() + "\n"


class Readme(ClusterTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="gwr-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def block(self, start):
        (found,) = [block for block in blocks() if block.startswith(start)]
        return found

    def run_two(self, *command, **environment):
        """The lines of two ranks under `gradwire run`."""
        done = subprocess.run([COMMAND, "run", "-n", "2", "--daemon", GRADWIRED, "--", *command], capture_output=True,
                              text=True, timeout=120, env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def test_the_c_program(self):
        (self.folder / "average.c").write_text(self.block("#include <gradwire/gradwire.h>"))
        line = self.block("cc average.c").splitlines()[0]
        line = line.replace("-Iclient/include", f"-I{ROOT}/client/include")
        line = line.replace("$PWD/build/release/client", str(CLIENT)).replace("build/release/client", str(CLIENT))
        subprocess.run(line + " -Wall -Wextra -Werror", shell=True, cwd=self.folder, check=True, timeout=60)
        lines = self.run_two(str(self.folder / "average"))
        self.assertEqual(sorted(line for line in lines if "average" in line),
                         ["[0] average 0.500000", "[1] average 0.500000"])

    def test_the_python_program(self):
        file = self.folder / "train.py"
        program = self.block("import gradwire, gradwire.torch, torch")
        self.assertIn("\nstate.close()", program)
        file.write_text(program.replace("state.close()", WEIGHTS + "state.close()"))
        lines = self.run_two(sys.executable, "-B", str(file), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        losses = [line.split(":")[0] for line in lines if re.search(r"rank \d: loss \d+[.]\d{4}$", line)]
        self.assertEqual(sorted(losses), ["[0] rank 0", "[1] rank 1"], lines)
        weights = {line.split("]")[1] for line in lines if "weights" in line}
        self.assertEqual(len(weights), 1, lines)

    def test_the_first_configuration_and_its_key(self):
        place = self.folder / "etc" / "gradwire"
        config = self.folder / "gradwired.yaml"
        config.write_text(self.block("peers:").replace("/etc/gradwire", str(place)))
        lines = self.block("install -d /etc/gradwire").replace("/etc/gradwire", str(place)).splitlines()[:2]
        subprocess.run("\n".join(lines), shell=True, check=True, timeout=60)
        key = place / "key"
        made = key.read_text()
        self.assertEqual(key.stat().st_mode & 0o777, 0o600)
        again = subprocess.run("\n".join(lines), shell=True, timeout=60, capture_output=True)
        self.assertNotEqual(again.returncode, 0)
        self.assertEqual(key.read_text(), made, "a key that is there stays")
        done = subprocess.run([GRADWIRED, "--check-config", str(config), "--set", "transport.devices=lo"],
                              capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_commands_and_files_that_it_names_exist(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        for name in set(re.findall(r"(?:tools|docs)/[\w./-]+\.(?:sh|py|md|txt)", text)):
            self.assertTrue((ROOT / name).exists(), name)
        presets = (ROOT / "CMakePresets.json").read_text(encoding="utf-8")
        (listed,) = re.findall(r"Presets: (.*?)\.\s", text, re.DOTALL)
        built = set(re.findall(r'"configurePreset": "(\w+)"', presets))
        self.assertEqual(set(re.findall(r"`(\w+)`", listed)) - {"gradwire_fuzz"}, built)
        self.assertIsNotNone(shutil.which("cc"))


if __name__ == "__main__":
    unittest.main()
