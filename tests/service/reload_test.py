"""SIGHUP: what changes, what needs a restart, and what a wrong file does."""
import time
import unittest

from support import ServiceTest, signal


class ReloadTest(ServiceTest):
    def reload(self, manager, service, config):
        service.write_config(config)
        before = len(service.text())
        service.process.send_signal(signal.SIGHUP)
        usec = int(manager.wait_for("RELOADING=1").split("MONOTONIC_USEC=")[1])
        self.assertLess(abs(usec - time.monotonic_ns() // 1000), 30_000_000)
        manager.wait_for("READY=1")
        return before

    def test_policy_quotas_and_log_level_change_for_what_comes_later(self):
        manager, service = self.managed("compression: {codec: none}\nquotas: {buckets_per_job: 8}\n")
        first = service.rank(self, ["join", "bucket:b0:float32:4096:gradient", "reduce:b0", "sleep:1500",
                                    "bucket:b1:float32:4096:gradient", "reduce:b1", "forever"])
        first.wait_ok("reduce:b0")
        before = self.reload(manager, service, "compression: {codec: l8, density: 0.5}\n"
                                               "quotas: {buckets_per_job: 8, bytes_per_user: 1MiB}\n"
                                               "log: {level: warn}\nclocks: {drain_timeout: 0s}\n")
        for wanted in ("option=compression.codec old=none new=l8", "option=compression.density old=0.01 new=0.5",
                       "option=quotas.bytes_per_user old=64GiB new=1MiB",
                       "option=clocks.drain_timeout old=5s new=0s"):
            service.wait_log(f"event=option_changed {wanted}", after=before)
        # The line about the level itself is written before it takes effect.
        service.wait_log("event=option_changed option=log.level old=info new=warn", after=before)
        self.assertNotIn("event=reloaded", service.text()[before:])
        first.wait_ok("reduce:b1")
        self.wait_codecs(service, {"b0": "none", "b1": "l8"})
        greedy = service.rank(self, ["join", "bucket:big:float32:4000000"], job="greedy")
        greedy.wait_ok("join")
        _, _, _, sentence = greedy.wait_error(20)
        self.assertIn("quotas.bytes_per_user is 1048576", sentence)

    def wait_codecs(self, service, wanted):
        service.wait_status(lambda report: wanted == {
            bucket["name"]: bucket["codec"] for job in report["jobs"] for bucket in job["buckets"]
            if bucket["bucket"] != 0})

    def test_options_that_need_a_restart_are_named_each_time(self):
        manager, service = self.managed()
        for _ in range(2):
            before = self.reload(manager, service, "clocks: {peer_timeout: 3s}\nlog: {level: info}\n")
            service.wait_log("event=option_needs_restart option=clocks.peer_timeout in_effect=2s in_file=3s",
                             after=before)
            service.wait_log("event=reloaded changed=0 need_restart=1", after=before)

    def test_a_wrong_file_changes_nothing_and_is_quoted(self):
        manager, service = self.managed("compression: {codec: l8}\n")
        before = self.reload(manager, service, "compression: {codec: laco, density: 7}\nlog: {level: warn}\n")
        line = service.wait_log("event=reload_failed", after=before)
        self.assertIn("compression.density: '7' is too large; allowed 0.000001 to 1", line)
        self.assertIn("a.yaml:4:", line)
        rank = service.rank(self, ["join", "bucket:b0:float32:4096:gradient", "reduce:b0", "forever"])
        rank.wait_ok("reduce:b0")
        self.wait_codecs(service, {"b0": "l8"})
        service.config.unlink()
        after = len(service.text())
        service.process.send_signal(signal.SIGHUP)
        manager.wait_for("READY=1")
        self.assertIn("cannot be read", service.wait_log("event=reload_failed", after=after))


if __name__ == "__main__":
    unittest.main()
