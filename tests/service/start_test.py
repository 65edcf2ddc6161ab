"""Starts: over leftovers, beside another daemon, with wrong configurations; and files that others spoil."""
import os
import pathlib
import re
import socket
import subprocess
import unittest

from support import GRADWIRED, Service, ServiceTest, signal

CONFIGURED_WRONGLY = 78


class StartTest(ServiceTest):
    def second(self, service, code=1):
        """What a second daemon says with the first one's configuration."""
        before = len(service.text())
        with open(service.log, "ab") as log:
            done = subprocess.run([GRADWIRED, "--config", str(service.config), "--set", "peers.port=0"],
                                  stdout=log, stderr=log, timeout=30, check=False)
        self.assertEqual(done.returncode, code, service.text())
        return service.text()[before:]

    def test_a_second_one_hears_the_pid_of_the_first_whatever_was_deleted(self):
        _, service = self.managed()
        pid = f"pid {service.process.pid}"
        for files in ([], ["gradwired.lock"], ["gradwired.lock", "gradwired.sock"]):
            for file in files:
                (service.runtime / file).unlink(missing_ok=True)
            text = self.second(service)
            self.assertIn("another gradwired", text)
            self.assertIn(pid, text)
            self.assertIn("node.runtime_dir", text)
        self.assertIsNone(service.process.poll())

    def test_the_leftovers_of_a_killed_daemon_are_replaced(self):
        _, service = self.managed()
        service.process.kill()
        service.process.wait()
        for file in ("gradwired.sock", "counters", "gradwired.lock"):
            self.assertTrue((service.runtime / file).exists(), file)
        (service.folder / "notify").unlink()
        self.managed()

    def refused(self, words, *settings):
        """The daemon with these settings ends with 78, with these words and a remedy."""
        command = [GRADWIRED]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, CONFIGURED_WRONGLY, output)
        self.assertRegex(output, words)
        self.assertRegex(output, "; (remove|check|make|set)")

    def settings(self, runtime, sock=None):
        return [f"node.runtime_dir={runtime}", f"node.socket={sock or runtime / 'gradwired.sock'}", "peers.port=0",
                "transport.devices=lo", "transport.tls=tcp,self"]

    def test_what_is_not_its_own_stays_and_is_named(self):
        def fifo(path):
            os.mkfifo(path)

        def listener(path):
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(path))

        def text(path):
            path.write_text("my notes\n")

        def link(path):
            path.symlink_to("/nonexistent")
        for number, (name, make) in enumerate([("gradwired.lock", fifo), ("gradwired.lock", listener),
                                               ("gradwired.lock", text), ("gradwired.lock", link),
                                               ("counters", text), ("counters", link), ("gradwired.sock", text)]):
            with self.subTest(name=name, make=make.__name__):
                runtime = self.folder / f"r{number}"
                runtime.mkdir()
                make(runtime / name)
                before = os.lstat(runtime / name)
                self.refused(f"{runtime}/{name} ", *self.settings(runtime))
                after = os.lstat(runtime / name)
                self.assertEqual((after.st_ino, after.st_mode, after.st_size, after.st_mtime_ns),
                                 (before.st_ino, before.st_mode, before.st_size, before.st_mtime_ns))

    def test_places_that_cannot_be_had_are_a_wrong_configuration(self):
        runtime = self.folder / "r"
        missing = self.folder / "missing"
        self.refused(f"{missing}/r: No such file", *self.settings(missing / "r"))
        self.refused(f"{missing}/s: No such file", *self.settings(runtime, missing / "s"))
        self.refused("/proc/gradwire: ", *self.settings(pathlib.Path("/proc/gradwire")))  # nobody may write there
        self.refused("/proc/gradwired.lock: ", *self.settings(pathlib.Path("/proc"), runtime / "s"))
        key = self.folder / "key"
        key.write_text("long enough to be a key\n")
        key.chmod(0o600)
        self.refused("192.0.2.1 port 0: Cannot assign", *self.settings(runtime), f"peers.key_file={key}",
                     "peers.listen=192.0.2.1")

    def test_a_page_that_is_cut_deleted_or_replaced_comes_back(self):
        _, service = self.managed()
        rank = service.rank(self, ["join", "bucket:b:float32:1000", "reduce:b", "forever"])
        rank.wait_ok("reduce:b")

        def spoil_by_a_directory_entry():
            other = service.runtime / "other"
            other.write_bytes(b"x")
            other.replace(service.page)
        for spoil in (lambda: os.truncate(service.page, 0), lambda: os.truncate(service.page, 5000),
                      service.page.unlink, spoil_by_a_directory_entry):
            spoil()
            service.wait_status(lambda report: report["state"] == "healthy" and any(
                bucket["name"] == "b" for job in report["jobs"] for bucket in job["buckets"]))
        self.assertIn("event=counters_page_restored", service.text())
        self.assertIsNone(service.process.poll())

    def test_a_runtime_directory_that_disappears_does_not_end_the_daemon(self):
        _, service = self.managed()
        rank = service.rank(self, ["join", "bucket:b:float32:1000", "reduce:b", "sleep:2500", "reduce:b", "leave"])
        rank.wait_ok("reduce:b")
        moved = service.folder / "moved"
        service.runtime.rename(moved)
        service.wait_log("event=counters_page_lost")
        rank.wait_ok("leave")
        moved.rename(service.runtime)
        service.process.send_signal(signal.SIGTERM)
        self.expect_end(service, 0, 10)

    def check(self, text, *settings):
        """(exit code, output) of --check-config."""
        file = self.folder / "check.yaml"
        file.write_text(text)
        command = [GRADWIRED, "--check-config", str(file)]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_check_config_reads_the_key_as_the_daemon_would(self):
        key = self.folder / "key"
        text = f"peers: {{key_file: {key}}}\ntransport: {{devices: lo}}\n"
        code, output = self.check(text)
        self.assertEqual(code, CONFIGURED_WRONGLY)
        self.assertIn("peers.key_file", output)
        self.assertIn("No such file", output)
        key.write_text("short\n")
        key.chmod(0o600)
        code, output = self.check(text)
        self.assertEqual(code, CONFIGURED_WRONGLY)
        self.assertIn("5 bytes; allowed are 16 to 256", output)
        key.write_text("long enough to be a key\n")
        key.chmod(0o644)
        code, output = self.check(text)
        self.assertEqual(code, CONFIGURED_WRONGLY)
        self.assertIn("chmod o=", output)
        key.chmod(0o640)
        self.assertEqual(self.check(text), (0, f"{self.folder}/check.yaml: ok\n"))

    def test_check_config_asks_ucx_about_its_names(self):
        for text, culprit in (("transport: {devices: lo99}", "lo99"), ("transport: {tls: 'tpc,self'}", "tpc"),
                              ("transport: {devices: lo, ucx: {TCP_CM_REUSEADR: y}}", "TCP_CM_REUSEADR")):
            with self.subTest(text):
                code, output = self.check(text)
                self.assertEqual(code, CONFIGURED_WRONGLY, output)
                self.assertIn(culprit, output)

    def test_a_port_that_looks_octal_is_refused(self):
        code, output = self.check("peers: {port: 010}")
        self.assertEqual(code, CONFIGURED_WRONGLY)
        self.assertIn("'010' starts with 0, which YAML takes for an octal number", output)

    def test_the_example_configuration_is_fine(self):
        example = pathlib.Path(os.environ["GRADWIRE_SOURCE"]) / "systemd" / "gradwired.yaml"
        code, output = self.check(example.read_text(), "transport.devices=lo")
        self.assertEqual(code, 0, output)
        # So are its comments that hold options.
        everything = re.sub(r"(?m)^#(?=  \w+: |(peers|transport|quotas|log):)", "", example.read_text())
        self.assertIn("\n  density: ", everything)
        key = self.folder / "key"
        key.write_text("long enough to be a key\n")
        key.chmod(0o600)
        code, output = self.check(everything, "transport.devices=lo", f"peers.key_file={key}")
        self.assertEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()
