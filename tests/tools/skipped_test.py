"""tools/dev/skipped.py against what unittest and GoogleTest really write."""
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "dev" / "skipped.py"
CASE = """
    import unittest

    class Base(unittest.TestCase):
        def setUp(self):
            self.skipTest("all of it's in the way")

    class One(Base):
        def test_a(self):
            pass

        def test_b(self):
            pass

    class Two(unittest.TestCase):
        def test_prints(self):
            print("something", flush=True)
            self.skipTest("no ptrace")

        @unittest.skip("not today")
        def test_c(self):
            pass

        def test_runs(self):
            print("skipped over a line")

    @unittest.skip("a class")
    class Three(unittest.TestCase):
        def test_d(self):
            pass
"""
OTHERS = """
skipped: convergence.short (mlp): no data: none at all
"""
GOOGLE = """
[ RUN      ] Containers.Join
/src/containers_test.cc:67: Skipped
this machine lets no test make namespaces

[  SKIPPED ] Containers.Join (0 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Containers.Join
[       OK ] Containers.Leave (3 ms)
"""


class Skipped(unittest.TestCase):
    def test_every_skipped_test_is_told_with_its_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "case.py").write_text(textwrap.dedent(CASE))
            log = pathlib.Path(folder, "LastTest.log")
            with open(log, "wb") as out:
                subprocess.run([sys.executable, "-B", "-m", "unittest", "-v", "case"], cwd=folder, stdout=out,
                               stderr=subprocess.STDOUT, check=True, timeout=60)
                out.write((GOOGLE + OTHERS).encode())
            done = subprocess.run([sys.executable, str(SCRIPT), str(log)], capture_output=True, text=True, check=True,
                                  timeout=60)
        self.assertEqual(sorted(done.stdout.splitlines()), [
            "skipped: Containers.Join: this machine lets no test make namespaces",
            "skipped: case.One.test_a, case.One.test_b: all of it's in the way",
            "skipped: case.Three.test_d: a class",
            "skipped: case.Two.test_c: not today",
            "skipped: case.Two.test_prints: no ptrace",
            "skipped: convergence.short (mlp): no data: none at all",
        ])


if __name__ == "__main__":
    unittest.main()
