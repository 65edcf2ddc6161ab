"""What gradwired tells the service manager."""
import unittest

from support import Service, ServiceTest, StoppedThread, signal


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
        rank = service.rank(self, ["join", "forever"], job="x\nSTOPPING=1\nMAINPID=1")
        try:
            rank.wait_ok("join", 5)
        except AssertionError:
            pass  # refused: as good
        rank.kill()
        manager.count("", 1.5)
        for message in manager.messages:
            self.assertNotIn("\nSTOPPING", message)
            self.assertNotIn("\nMAINPID", message)

    def test_an_abstract_socket_is_as_good(self):
        manager = self.manager(abstract=True)
        service = Service(self, self.folder, environment={"NOTIFY_SOCKET": manager.name})
        manager.wait_for("READY=1")
        service.process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        self.expect_end(service, 0, 10)

    def test_a_manager_that_does_not_read_stops_nothing(self):
        manager, service = self.managed(watchdog_us=300_000)
        for i in range(12):  # more messages than a datagram socket keeps
            rank = service.rank(self, ["join", "leave"], job=f"job{i}")
            rank.wait_ok("leave")
        service.process.send_signal(signal.SIGTERM)
        self.expect_end(service, 0, 10)
        self.assertLess(manager.count("", 0.3), 1)

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
