"""The files that a package installs: what systemd's own tools say of them in a staging root."""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from support import ServiceTest

BUILD = os.environ.get("GRADWIRE_BUILD", "")
MOST_EXPOSED = 2.5


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


class UnitTest(ServiceTest):
    def need(self, tool):
        if shutil.which(tool) is None:
            self.skipTest(f"{tool} is not installed")

    def staged(self, prefix):
        """The root of an installation of the systemd folder with this prefix."""
        root = self.folder / "root"
        done = run("cmake", "--install", f"{BUILD}/systemd", "--prefix", str(root) + prefix)
        self.assertEqual(done.returncode, 0, done.stderr)
        return root

    def unit(self):
        """The unit with an ExecStart that exists, as verify wants it."""
        root = self.staged("/usr/local")
        found = list(root.rglob("gradwired.service"))
        self.assertEqual(len(found), 1, found)
        text = found[0].read_text()
        self.assertNotIn("@", re.sub(r"@(system-service|privileged|chown)\b", "", text))
        # Of the prefix that is given when it is installed.
        self.assertIn(f"\nExecStart={root}/usr/local/sbin/gradwired --config /etc/gradwire/gradwired.yaml\n", text)
        self.assertIn(f"\nDocumentation=file://{root}/usr/local/share/doc/gradwire/service.md\n", text)
        program = self.folder / "gradwired"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        copy = self.folder / "gradwired.service"
        copy.write_text(re.sub(r"(?m)^(ExecStart=)\S+", rf"\g<1>{program}", text))
        return copy, text

    def test_verify_finds_nothing_wrong(self):
        self.need("systemd-analyze")
        copy, _ = self.unit()
        done = run("systemd-analyze", "verify", "--man=no", str(copy))
        ours = [line for line in (done.stdout + done.stderr).splitlines() if "gradwire" in line]
        self.assertEqual((done.returncode, ours), (0, []), done.stderr)

    def test_the_service_is_hardly_exposed(self):
        self.need("systemd-analyze")
        copy, _ = self.unit()
        done = run("systemd-analyze", "security", "--no-pager", "--offline=true",
                   f"--threshold={int(MOST_EXPOSED * 10)}", str(copy))
        self.assertEqual(done.returncode, 0, done.stdout[-300:] + done.stderr)
        level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
        self.assertIsNotNone(level, done.stdout)
        self.assertLessEqual(float(level[1]), MOST_EXPOSED)

    def test_the_unit_is_what_the_daemon_counts_on(self):
        _, text = self.unit()
        options = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"^[A-Z]\w+=", line))
        for name, value in {"Type": "notify", "NotifyAccess": "main", "Restart": "on-failure",
                            "RestartPreventExitStatus": "78", "RuntimeDirectory": "gradwire",
                            "RuntimeDirectoryPreserve": "restart", "LimitMEMLOCK": "infinity",
                            "ExecReload": "/bin/kill -HUP $MAINPID", "User": "gradwire", "Group": "gradwire",
                            "WatchdogSec": "10s", "AmbientCapabilities": "CAP_NET_ADMIN",
                            "CapabilityBoundingSet": "CAP_NET_ADMIN"}.items():
            self.assertEqual(options.get(name), value, name)
        self.assertNotIn("MemoryDenyWriteExecute", options)
        self.assertNotIn("DynamicUser", options)
        # The longest drain_timeout, and the daemon's own limit after it.
        self.assertGreater(int(options["TimeoutStopSec"].removesuffix("s")), 60 + 10)

    def test_sysusers_makes_user_and_group(self):
        self.need("systemd-sysusers")
        root = self.staged("/usr/local")
        found = list(root.rglob("sysusers.d/gradwire.conf"))
        self.assertEqual(len(found), 1)
        target = self.folder / "machine"
        (target / "etc").mkdir(parents=True)
        (target / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (target / "etc" / "group").write_text("root:x:0:\n")
        file = target / "usr" / "lib" / "sysusers.d" / "gradwire.conf"
        file.parent.mkdir(parents=True)
        shutil.copy(found[0], file)
        done = run("systemd-sysusers", f"--root={target}", "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("systemd-sysusers", f"--root={target}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex((target / "etc" / "passwd").read_text(), r"(?m)^gradwire:x:\d+:\d+:.*:/usr/sbin/nologin$")
        self.assertRegex((target / "etc" / "group").read_text(), r"(?m)^gradwire:x:\d+:")

    def test_a_private_prefix_gets_everything_below_it(self):
        root = self.staged("/opt/gradwire")
        for file in root.rglob("*"):
            if file.is_file():
                self.assertTrue(str(file).startswith(f"{root}/opt/gradwire/"), file)
        names = {file.name for file in root.rglob("*") if file.is_file()}
        self.assertLessEqual({"gradwired.service", "gradwire.conf", "gradwired.yaml", "gradwired.yaml.5", "service.md",
                              "configuration.md"}, names)


if __name__ == "__main__":
    unittest.main()
