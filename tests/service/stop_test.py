"""SIGTERM: operations in flight may end, nobody new gets in, and the process ends whatever is stuck."""
import os
import time
import unittest

from support import ServiceTest, StoppedThread, harness, signal


class StopTest(ServiceTest):
    def start(self, config="", **more):
        _, service = self.managed(config, **more)
        return service

    def pair(self, service, second):
        """Rank 0 has submitted b, rank 1 does `second` after 'join' and its bucket."""
        steps = ["join", "bucket:b:float32:1000", "reduce:b"]
        ranks = [service.rank(self, [*steps, "submit:b", "wait:b", "linger", "reduce:b:100000000"], 0, 2),
                 service.rank(self, [*steps, *second], 1, 2)]
        for rank in ranks:
            rank.wait_ok("reduce:b")
        ranks[0].wait_ok("submit:b")
        time.sleep(0.1)
        return ranks

    def test_an_idle_daemon_stops_at_once_and_leaves_a_page_that_says_so(self):
        manager, service = self.managed()
        self.assertEqual(self.stopped_ns(service), 0)
        service.process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        self.expect_end(service, 0, 3)
        self.assertFalse(service.socket.exists())
        self.assertGreater(self.stopped_ns(service), 1_600_000_000 * 10**9)
        self.assertIn("event=stopped", service.text())

    def stopped_ns(self, service):
        """The header's stopped_unix_ns, from which kept_bytes and kept_jobs follow (counters_layout.h)."""
        return int.from_bytes(service.page.read_bytes()[408:416], "little")

    def test_operations_in_flight_may_end(self):
        service = self.start("clocks: {drain_timeout: 20s}\n")
        ranks = self.pair(service, ["sleep:1500", "submit:b", "wait:b", "linger", "reduce:b:100000000"])
        service.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        for rank in ranks:
            rank.wait_ok("wait:b")
        for rank in ranks:
            self.assertIn("the daemon on node a is stopping", rank.wait_error(10)[3])
        self.expect_end(service, 0, 5)
        self.assertLess(time.monotonic() - started, 12)

    def test_an_operation_that_does_not_end_in_time_ends_with_the_cause(self):
        service = self.start("clocks: {drain_timeout: 500ms}\n")
        ranks = self.pair(service, ["forever"])
        service.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        self.assertIn("the daemon on node a is stopping", ranks[0].wait_error(10)[3])
        self.assertGreater(time.monotonic() - started, 0.4)
        self.expect_end(service, 0, 5)
        self.assertIn("event=drain_timeout operations=1", service.text())

    def test_zero_waits_for_nothing(self):
        service = self.start("clocks: {drain_timeout: 0s}\n")
        ranks = self.pair(service, ["forever"])
        service.process.send_signal(signal.SIGTERM)
        self.assertIn("the daemon on node a is stopping", ranks[0].wait_error(3)[3])
        self.expect_end(service, 0, 3)

    def test_a_second_signal_ends_the_waiting(self):
        service = self.start("clocks: {drain_timeout: 60s}\n")
        ranks = self.pair(service, ["forever"])
        service.process.send_signal(signal.SIGTERM)
        service.wait_log("event=draining operations=1")
        service.process.send_signal(signal.SIGINT)
        self.assertIn("the daemon on node a is stopping", ranks[0].wait_error(3)[3])
        self.expect_end(service, 0, 3)

    def test_nobody_joins_a_daemon_that_stops(self):
        service = self.start("clocks: {drain_timeout: 60s}\n")
        waits = service.rank(self, ["join"], 0, 2, job="forming")
        self.pair(service, ["forever"])
        service.process.send_signal(signal.SIGTERM)
        service.wait_log("event=draining")
        self.assertIn("the daemon on node a is stopping", waits.wait_error(10)[3])
        late = service.rank(self, ["join"], job="late")
        self.assertIn("the daemon on node a is stopping", late.wait_error(10)[3])

    def test_a_stuck_engine_does_not_keep_the_process(self):
        service = self.start("clocks: {drain_timeout: 0s}\n")
        held = StoppedThread(self, service.threads()["gw-engine"])
        self.end_by_force(service, held)

    def test_a_stuck_control_thread_does_not_keep_the_process(self):
        service = self.start("clocks: {drain_timeout: 0s}\n")
        held = StoppedThread(self, service.process.pid)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        service.process.send_signal(signal.SIGTERM)  # the second signal shortens the wait
        deadline = time.monotonic() + 4
        pid, status = 0, 0
        while pid == 0 and time.monotonic() < deadline:
            pid, status = os.waitpid(held.thread, os.WNOHANG | held.WALL)
            time.sleep(0.02)
        self.assertEqual((pid, os.waitstatus_to_exitcode(status)), (service.process.pid, 1))
        service.process.returncode = 1
        self.assertEqual(service.text().count("event=stop_forced"), 1)

    def end_by_force(self, service, held):
        service.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        held.reap()
        self.assertEqual(service.process.wait(15), 1)
        self.assertLess(time.monotonic() - started, 8)
        self.assertEqual(service.text().count("event=stop_forced"), 1)

    def test_the_other_nodes_hear_which_node_stops_and_go_on(self):
        cluster = harness.Cluster(self, 2)
        ranks = cluster.start(["join", "bucket:b:float32:100000", "reduce:b:1000000"], 1)
        for rank in ranks.values():
            rank.wait_ok("bucket:b:float32:100000")
        cluster.daemons[1].process.send_signal(signal.SIGTERM)
        for rank in ranks.values():
            self.assertIn("the daemon on node node1 is stopping", rank.wait_error(10)[3])
        self.assertEqual(cluster.daemons[1].process.wait(10), 0)
        self.assertIsNone(cluster.daemons[0].process.poll())


if __name__ == "__main__":
    unittest.main()
