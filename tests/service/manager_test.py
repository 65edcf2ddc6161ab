"""What gradwired tells the service manager."""
import re
import unittest

from support import PATIENCE, Service, ServiceTest, StoppedThread, signal


class ManagerTest(ServiceTest):
    def test_ready_comes_when_everything_listens_and_the_status_says_what_there_is(self):
        manager, service = self.managed()
        self.assertEqual(service.socket.exists(), True)
        service.wait_ready(1)
        self.assertIn("STATUS=no jobs", manager.messages)
        rank = service.rank(self, ["join", "bucket:b:float32:100", "reduce:b:3", "sleep:600", "leave"], job="train")
        rank.wait_ok("join")
        manager.wait_for("STATUS=1 job, 1 rank here")
        rank.wait_ok("leave")
        manager.wait_for("STATUS=no jobs; last: train epoch 1 ended")
        rank = service.rank(self, ["join", "forever"], job="doomed")
        rank.wait_ok("join")
        rank.kill()
        line = manager.wait_for("STATUS=no jobs; last: doomed")
        self.assertIn("was aborted: rank 0 on node a died", line)

    def test_a_name_of_a_job_says_nothing_to_the_manager(self):
        manager, service = self.managed()
        for name in ("x\nSTOPPING=1\nMAINPID=1", "x\u2028STOPPING=1\u0085MAINPID=1 \u202e", "x\x9bSTOPPING=1"):
            rank = service.rank(self, ["join"], job=name)
            self.assertIn("control character", rank.wait_error(PATIENCE)[3])
        rank = service.rank(self, ["join", "forever"], job="x STOPPING=1;MAINPID=1 gr\u00fcn")
        rank.wait_ok("join")
        rank.kill()
        manager.wait_for("STATUS=no jobs; last: x")
        for message in manager.messages:
            self.assertRegex(message, r"^(READY=1|STATUS=.*)$")
            self.assertEqual(message.splitlines(), [message])
            self.assertTrue(message.isprintable(), message)

    def test_an_abstract_socket_is_as_good(self):
        manager = self.manager(abstract=True)
        service = Service(self, self.folder, environment={"NOTIFY_SOCKET": manager.name})
        manager.wait_for("READY=1")
        service.process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        self.expect_end(service, 0, 10)

    def test_a_manager_that_does_not_read_stops_nothing(self):
        manager, service = self.managed(watchdog_us=300_000)
        manager.fill()
        rank = service.rank(self, ["join", "bucket:b:float32:100", "reduce:b:3", "leave"])
        rank.wait_ok("leave")
        service.process.send_signal(signal.SIGTERM)
        self.expect_end(service, 0, 10)
        self.assertNotIn("STOPPING=1", manager.drain(), "there was room: the test shows nothing")

    def test_what_must_arrive_comes_in_order_when_the_manager_reads_again(self):
        manager, service = self.managed()
        manager.fill()
        seen = len(manager.messages)
        for _ in range(2):
            before = len(service.text())
            service.process.send_signal(signal.SIGHUP)
            service.wait_log("event=reloaded", after=before)
        got = [manager.wait_for(wanted) for wanted in ("RELOADING=1", "READY=1", "RELOADING=1", "READY=1")]
        self.assertEqual(got, [message for message in manager.messages[seen:] if re.match("RELOADING|READY", message)])
        for message in got[::2]:
            self.assertRegex(message, r"^RELOADING=1\nMONOTONIC_USEC=\d+$")
        service.process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        self.expect_end(service, 0, 10)

    def test_the_watchdog_is_fed_while_both_loops_turn_and_starves_without_the_engine(self):
        manager, service = self.managed(watchdog_us=600_000)
        self.assertGreaterEqual(manager.count("WATCHDOG=1", 1.5), 3)
        held = StoppedThread(self, service.threads()["gw-engine"])
        manager.count("WATCHDOG=1", 0.3)  # what was under way
        self.assertEqual(manager.count("WATCHDOG=1", 1.5), 0)
        held.release()
        self.assertGreaterEqual(manager.count("WATCHDOG=1", 2), 2)

    def test_the_watchdog_starves_without_the_control_thread(self):
        manager, service = self.managed(watchdog_us=600_000)
        manager.wait_for("WATCHDOG=1")
        held = StoppedThread(self, service.process.pid)
        manager.count("WATCHDOG=1", 0.3)
        self.assertEqual(manager.count("WATCHDOG=1", 1.2), 0)
        held.release()
        manager.wait_for("WATCHDOG=1")


if __name__ == "__main__":
    unittest.main()
