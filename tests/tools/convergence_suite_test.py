"""What the convergence suite keeps of results, and what it does when something fails."""
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

TOOLS = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "convergence"))
sys.path.insert(0, TOOLS)
import experiments  # noqa: E402
import report  # noqa: E402
import ring_lab  # noqa: E402
import run as runner  # noqa: E402
import store  # noqa: E402
import suite  # noqa: E402

RESULT = {"metric": 88.5, "seconds": 20, "ratio": 4.0, "ratio_sent": 3.9, "left_out": 0}


class Scratch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.path = str(self.directory / "deep" / "results.jsonl")
        self.behaviour = "one"
        fake = mock.Mock(of=lambda spec: self.behaviour)
        self.enterContext(mock.patch.object(ring_lab, "Fingerprints", return_value=fake))
        self.run_0 = experiments.run("mlp", "l8", 0, {"codec": "l8"})
        self.run_1 = experiments.run("mlp", "l8", 1, {"codec": "l8"})

    def open(self):
        return store.Results(self.path, "library")


class Store(Scratch):
    def test_results_outlive_the_process_but_not_a_change(self):
        results = self.open()
        results.check_writable()
        results.add(self.run_0, RESULT)
        with open(self.path, "a") as file:
            file.write('{"key": "cut sho')  # a writer that was killed
        again = self.open()
        self.assertEqual(again.metric(self.run_0), 88.5)
        self.assertIsNone(again.metric(self.run_1))
        again.add(self.run_1, {**RESULT, "metric": 88.25})
        self.assertEqual((self.open().metric(self.run_0), self.open().metric(self.run_1)), (88.5, 88.25))
        self.behaviour = "two"
        self.assertIsNone(self.open().metric(self.run_0))
        self.behaviour = "one"
        for what in ("torch_version", "file_hash"):
            with mock.patch.object(store, what, return_value="of tomorrow"):
                self.assertIsNone(self.open().metric(self.run_0), what)
        self.assertEqual(self.open().metric(self.run_0), 88.5)

    def test_a_key_covers_every_module_that_training_imports(self):
        program = "import sys, training; print(*(getattr(m, '__file__', None) for m in list(sys.modules.values())))"
        done = subprocess.run([sys.executable, "-B", "-c", program], cwd=TOOLS, stdout=subprocess.PIPE, text=True, check=True)
        own = {os.path.normpath(path) for path in done.stdout.split() if os.path.dirname(TOOLS) in path}
        covered = {os.path.normpath(os.path.join(TOOLS, name)) for name in store.CODE}
        self.assertEqual(own, covered | {os.path.join(TOOLS, "ring_lab.py")})  # a fingerprint goes through that

    def test_lines_that_lack_a_field_are_no_results(self):
        results = self.open()
        results.check_writable()
        results.add(self.run_0, RESULT)
        whole = json.loads(pathlib.Path(self.path).read_text())
        for name in ("key", "spec", "metric", "ratio_sent", "left_out", "seconds"):
            line = json.dumps({key: value for key, value in whole.items() if key != name})
            pathlib.Path(self.path).write_text(line + '\n[]\n7\n{"key": 1, "spec": 2, "seconds": 3}\n')
            again = self.open()
            self.assertEqual((again.by_key, again.seconds), ({}, store.GUESS), name)
        for name, value in (("key", [1]), ("metric", "high"), ("spec", {**whole["spec"], "epochs": "ten"})):
            pathlib.Path(self.path).write_text(json.dumps({**whole, name: value}))
            self.assertEqual(self.open().by_key, {}, name)
        with self.assertRaises(ValueError):
            results.add(self.run_1, {"metric": 88.5, "seconds": 20})

    def test_a_place_that_keeps_nothing_is_refused_first(self):
        (self.directory / "file").touch()
        self.path = str(self.directory / "file" / "results.jsonl")
        with self.assertRaisesRegex(store.NoStore, "--results"):
            self.open().check_writable()
        self.path = str(self.directory)
        with self.assertRaisesRegex(store.NoStore, "--results"):
            self.open()


class Suites(Scratch):
    """With a program in the place of the trainings."""

    def suite(self, program, results=None, jobs=1):
        path = self.directory / "program.py"
        path.write_text(textwrap.dedent(program))
        results = results or store.Results(None, "library")
        trainer = suite.Suite(results, "library", jobs, time.monotonic() + 1e6)
        trainer.program = str(path)
        trainer.usable = lambda run: True
        return trainer

    def do(self, trainer):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            complete = trainer.do(lambda: [self.run_0, self.run_1])
        return complete, out.getvalue()

    def test_what_the_children_report_is_told_and_kept(self):
        trainer = self.suite(f"""
            import json
            print(json.dumps({{"epoch": 1, "metric": 50.0}}))
            print(json.dumps({RESULT}))
        """)
        complete, out = self.do(trainer)
        self.assertTrue(complete)
        self.assertEqual((trainer.failures, trainer.children), ([], []))
        self.assertIn("run 1 of 2  mlp l8, seed 0: epoch 1/10 50.00, about ", out)

    def test_children_that_fail_are_failures(self):
        for program, why in (
            ("print('what is this')", "what is this"),
            ("print('[]')", "[]"),
            ("print('{\"metric\": 1}')", "lacks"),
            ("import sys; print('{\"epoch\": 1}'); sys.stdin.read()", "KeyError"),
            (f"import json; print(json.dumps({RESULT})); raise SystemExit(3)", "exit code 3"),
            ("raise SystemExit('no luck')", "no luck"),
        ):
            trainer = self.suite(program)
            complete, _ = self.do(trainer)
            self.assertFalse(complete)
            self.assertEqual((len(trainer.failures), trainer.children), (2, []), program)
            self.assertIn(why, trainer.failures[0])

    def test_a_disk_that_is_full_is_a_failure_and_ends_the_suite(self):
        results = self.open()
        results.check_writable()
        results._append = mock.Mock(side_effect=OSError(28, "No space left on device"))
        trainer = self.suite(f"import json; print(json.dumps({RESULT}))", results)
        complete, _ = self.do(trainer)
        self.assertFalse(complete)
        self.assertEqual(len(trainer.failures), 1)
        self.assertIn("No space left", trainer.failures[0])

    def test_an_interruption_ends_the_children(self):
        trainer = self.suite("import time; print('{}', flush=True); time.sleep(60)", jobs=2)
        work = threading.Thread(target=self.do, args=(trainer,))
        work.start()
        deadline = time.monotonic() + 30
        while len(trainer.children) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        children = list(trainer.children)
        self.assertEqual(len(children), 2)
        trainer.interrupt()
        work.join(timeout=30)
        self.assertFalse(work.is_alive())
        self.assertEqual([child.returncode for child in children], [-signal.SIGKILL] * 2)
        self.assertEqual(trainer.failures, [])


class Signals(unittest.TestCase):
    def test_a_child_ends_with_its_parent(self):
        code = "import suite, time; suite.die_with_parent(); print('up', flush=True); time.sleep({})"
        pipe = subprocess.PIPE
        for seconds, close, expected in ((60, True, 1), (0.1, False, 0)):
            command = [sys.executable, "-B", "-c", code.format(seconds)]
            with subprocess.Popen(command, cwd=TOOLS, stdin=pipe, stdout=pipe, stderr=pipe) as child:
                child.stdout.readline()
                if close:
                    child.stdin.close()
                self.assertEqual(child.wait(timeout=30), expected)

    def test_a_signal_ends_all_and_says_how_to_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            program, pid = pathlib.Path(folder, "program.py"), pathlib.Path(folder, "pid")
            program.write_text(f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(60)")
            code = f"""
                import run, suite, sys
                suite.Suite.program = {str(program)!r}
                run.sort_by_data = lambda tasks, _: (tasks, 0, 0)
                run.warn_of_slow_products = lambda: None
                sys.argv = ["run.py", "--try", "mlp", "codec=none", "--jobs", "1", "--results", {folder!r} + "/results"]
                sys.exit(run.main())
            """
            for number in (signal.SIGTERM, signal.SIGINT):
                pid.unlink(missing_ok=True)
                command = [sys.executable, "-B", "-c", textwrap.dedent(code)]
                with subprocess.Popen(command, cwd=TOOLS, stdout=subprocess.PIPE, text=True) as parent:
                    try:
                        deadline = time.monotonic() + 30
                        while not (pid.exists() and pid.read_text().endswith(".")) and time.monotonic() < deadline:
                            time.sleep(0.01)
                        parent.send_signal(number)
                        out, _ = parent.communicate(timeout=30)
                    finally:
                        parent.kill()
                self.assertEqual(parent.returncode, 130)
                self.assertIn("stopped; start again to go on", out)
                with self.assertRaises(ProcessLookupError):
                    os.kill(int(pid.read_text().rstrip(".")), 0)


class ExitCodes(unittest.TestCase):
    def code(self, data, missed=0, short=True, **trainer):
        options = mock.Mock(short=short, tasks=["mlp"], jobs=1, budget=1, experiment=None)
        fake = mock.Mock(interrupted=False, failures=[], do=lambda plan: True, refused=lambda: False)
        fake.configure_mock(**trainer)
        with mock.patch.object(runner, "sort_by_data", return_value=data), mock.patch.object(
            runner, "warn_of_slow_products"
        ), mock.patch.object(suite, "Suite", return_value=fake), mock.patch.object(
            report, "short_verdicts", return_value=missed
        ), mock.patch.object(report, "tables", return_value=""), contextlib.redirect_stdout(io.StringIO()):
            return runner.train(options, None, "library", lambda tasks: [])

    def test_the_short_form_passes_only_where_everything_was_compared(self):
        here, away, damaged, partly = (["mlp"], 0, 0), ([], 1, 0), ([], 0, 1), (["mlp"], 1, 0)
        self.assertEqual(self.code(here), 0)
        self.assertEqual(self.code(here, missed=1), 1)
        self.assertEqual(self.code(here, failures=["one"]), 1)
        self.assertEqual(self.code(here, refused=lambda: True), 1)
        self.assertEqual(self.code(here, do=lambda plan: False), 1)
        self.assertEqual(self.code(away), 77)
        self.assertEqual(self.code(partly), 77)
        self.assertEqual(self.code(partly, missed=1), 1)
        self.assertEqual(self.code(damaged), 1)
        self.assertEqual(self.code(([], 1, 1)), 1)
        self.assertEqual(self.code((["mlp"], 0, 1)), 1)
        self.assertEqual(self.code(here, interrupted=True), 130)

    def test_the_long_form_fails_where_something_failed(self):
        here = (["mlp"], 1, 0)
        self.assertEqual(self.code(here, short=False), 0)
        self.assertEqual(self.code(here, short=False, failures=["one"]), 1)
        self.assertEqual(self.code(here, short=False, refused=lambda: True), 1)
        self.assertEqual(self.code(([], 1, 0), short=False), 1)

    def test_data_that_are_away_or_damaged_are_told_in_a_line(self):
        import corpus
        import tasks

        for raised, counts, word in (
            (FileNotFoundError(2, "No such file", "/x/images"), (1, 0), "skipped: convergence.short (mlp): /x/images"),
            (EOFError("cut"), (0, 1), "failed: mlp"),
            (ValueError("not an IDX file"), (0, 1), "not an IDX file"),
            (OSError("not a gzip file"), (0, 1), "not a gzip file"),
        ):
            with mock.patch.object(tasks.fashion_mnist, "load", side_effect=raised), contextlib.redirect_stdout(
                io.StringIO()
            ) as out:
                self.assertEqual(runner.sort_by_data(["mlp"], "convergence.short"), ([], *counts))
            self.assertIn(word, out.getvalue())
        for raised, counts in ((corpus.NoCorpus("no bible"), (1, 0)), (corpus.DamagedCorpus("half"), (0, 1))):
            with mock.patch.object(corpus, "read_verses", side_effect=raised), contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(runner.sort_by_data(["lm"], "convergence"), ([], *counts))
            self.assertEqual(len(out.getvalue().splitlines()), 1)

    def test_a_build_or_a_place_that_is_not_there_is_told_before_anything_is_trained(self):
        place = ["--results", "/proc/1/no/results.jsonl"]
        for library, arguments, code, word in (
            ("/none.so", ["--short"], 77, "skipped: convergence.short: /none.so is not there; build it"),
            ("/none.so", ["--report"], 1, "/none.so is not there; build it"),
            ("/etc/hostname", ["--try", "mlp", "codec=none", *place], 1, "name another file with --results"),
            ("/etc/hostname", ["--seeds", "-1"], 2, "invalid seed value"),
            ("/etc/hostname", ["--report", "--tasks", "lm", *place], 1, "build the library again"),
        ):
            command = [sys.executable, "-B", TOOLS + "/run.py", *arguments]
            environment = {**os.environ, "GRADWIRE_RING_LAB": library}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(word, done.stdout + done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_a_codec_that_does_not_exist_is_refused_in_one_sentence(self):
        with self.assertRaises(ring_lab.LabError) as caught, contextlib.closing(
            ring_lab.Ring(2, [("weight", 64)], {"codec": "nope"})
        ):
            pass
        self.assertIn("'nope' is not known", str(caught.exception))
        self.assertNotIn("same version", str(caught.exception))  # there are no nodes to ask it of

    def test_a_report_of_nothing_says_where_it_looked(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-B", TOOLS + "/run.py", "--report", "--tasks", "mlp", "--results", folder + "/none"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"nothing of this is in {folder}/none (--short keeps nothing there)", done.stdout)

    def test_without_torch_or_numpy_a_sentence_is_said(self):
        for module, arguments, code, word in (
            ("torch", ["--short", "--tasks", "mlp"], 77, "install python3-torch"),
            ("numpy", ["--report"], 1, "install python3-numpy"),
        ):
            program = f"""
                import runpy, sys
                sys.modules[{module!r}] = None
                sys.argv = ["run.py", *{arguments!r}]
                sys.path.insert(0, {TOOLS!r})
                runpy.run_path({TOOLS!r} + "/run.py", run_name="__main__")
            """
            done = subprocess.run(
                [sys.executable, "-B", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(word, done.stdout + done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
