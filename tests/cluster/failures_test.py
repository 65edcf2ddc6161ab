"""Ranks and daemons that die, hang, disagree or stay away: every waiting rank is told who, within the clock."""
import signal
import time
import unittest

from harness import Cluster, ClusterTest

PEER_TIMEOUT = 1.0  # seconds
OPERATION_TIMEOUT = 2.0
SLACK = 2.0  # for a loaded machine
CLOCKS = {"clocks.peer_timeout": "1s", "clocks.operation_timeout": "60s", "clocks.stall_warning": "500ms"}
SHORT = dict(CLOCKS, **{"clocks.operation_timeout": "2s"})
ABORTED = ("aborted",)
SETUP = ["join", "bucket:b:float32:100000:gradient", "reduce:b:3"]
ENDLESS = SETUP + ["barrier", "reduce:b:1000000"]


class Death(ClusterTest):
    def test_a_trainer_killed_while_the_others_wait(self):
        cluster = Cluster(self, 2, CLOCKS)
        ranks = cluster.start(
            lambda rank: SETUP + (["forever"] if rank == 3 else ["submit:b", "sleep:100", "wait:b"]), 2)
        for rank in (0, 1, 2):
            ranks[rank].wait_ok("sleep:100")
        victim = ranks.pop(3)
        victim.wait_ok("reduce:b:3")
        victim.kill()
        self.expect_errors(ranks, PEER_TIMEOUT + SLACK, ABORTED, r"rank 3\b")
        self.check_serves_again(cluster)

    def test_a_trainer_killed_while_gradients_travel(self):
        cluster = Cluster(self, 2, CLOCKS)
        steps = ["join", "bucket:big:float32:4000000:gradient", "reduce:big", "reduce:big:1000000"]
        ranks = cluster.start(steps, 2)
        self.wait_all_ok(ranks, "reduce:big")
        time.sleep(0.3)
        ranks.pop(2).kill()
        self.expect_errors(ranks, PEER_TIMEOUT + SLACK, ABORTED, r"rank 2\b")
        self.check_serves_again(cluster)

    def test_a_trainer_that_leaves_no_trace_but_ends_without_leaving(self):
        cluster = Cluster(self, 2, CLOCKS)
        ranks = cluster.start(lambda rank: SETUP + ["sleep:300"] if rank == 0 else ENDLESS, 1)
        self.wait_all_ok(ranks, "reduce:b:3")
        ranks.pop(0)
        self.expect_errors(ranks, PEER_TIMEOUT + SLACK, ABORTED, r"rank 0\b")

    def test_daemons_killed_tell_both_their_own_and_the_others_ranks(self):
        for victim in (1, 0):  # an ordinary node, and the coordinator
            with self.subTest(node=victim):
                cluster = Cluster(self, 2, CLOCKS)
                ranks = cluster.start(ENDLESS, 2)
                self.wait_all_ok(ranks, "barrier")
                time.sleep(0.2)
                cluster.daemons[victim].kill()
                local = {rank: ranks[rank] for rank in ranks if rank // 2 == victim}
                remote = {rank: ranks[rank] for rank in ranks if rank // 2 != victim}
                self.expect_errors(local, PEER_TIMEOUT + SLACK, ("unavailable",), r"daemon|gradwired")
                self.expect_errors(remote, PEER_TIMEOUT + SLACK, ABORTED, rf"node{victim}\b")
                self.check_status_says_so(cluster.daemons[1 - victim], rf"node{victim}\b")
                cluster.restart(victim)
                self.check_serves_again(cluster)

    def test_a_daemon_that_is_stopped_is_gone_after_peer_timeout(self):
        cluster = Cluster(self, 2, CLOCKS)
        ranks = cluster.start(ENDLESS, 1)
        self.wait_all_ok(ranks, "barrier")
        cluster.daemons[1].kill(signal.SIGSTOP)
        stopped = time.monotonic()
        self.expect_errors({0: ranks[0]}, PEER_TIMEOUT + SLACK, ABORTED, r"node1\b")
        self.expect_errors({1: ranks[1]}, stopped + PEER_TIMEOUT + 1 + SLACK - time.monotonic(), ("unavailable",),
                           r"gradwired")
        time.sleep(max(stopped + 4.2 - time.monotonic(), 0))
        code, daemon = cluster.daemons[1].status()
        self.assertEqual((code, daemon["state"]), (1, "wedged"))
        cluster.daemons[1].kill(signal.SIGCONT)
        self.check_serves_again(cluster)

    def check_status_says_so(self, daemon, culprit):
        deadline = time.monotonic() + SLACK  # the page is written a few times a second
        code, report = daemon.status()
        while code == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
            code, report = daemon.status()
        self.assertEqual((code, report["state"]), (1, "degraded"))
        self.assertRegex(" ".join(report["reasons"]), culprit)

    def check_serves_again(self, cluster):
        """The daemons that saw a failure serve the next job."""
        self.wait_all_ended(cluster.start(SETUP + ["leave"], 2))


class Disagreement(ClusterTest):
    def refuse(self, odd_step, culprit):
        """Rank 3 makes the bucket in its own way: everybody is told, also who comes late (so the others stay)."""
        cluster = Cluster(self, 2, CLOCKS)
        ranks = cluster.start(
            lambda rank: ["linger", "join", odd_step if rank == 3 else "bucket:b:float32:1000:gradient", "reduce:b"], 2)
        self.expect_errors(ranks, SLACK + PEER_TIMEOUT, ("mismatch",), culprit)

    def test_shape(self):
        self.refuse("bucket:b:float32:1001:gradient", r"(?s)(?=.*\b1001\b).*\b3\b")

    def test_dtype(self):
        self.refuse("bucket:b:int32:1000:gradient", r"(?s)(?=.*(int32|dtype)).*\b3\b")

    def test_compressible_or_not(self):
        self.refuse("bucket:b:float32:1000", r"\b3\b")

    def test_world_size(self):
        cluster = Cluster(self, 2, SHORT)
        ranks = cluster.start(["join"], 2, worlds={3: 5})
        self.expect_errors(ranks, OPERATION_TIMEOUT + SLACK, ("mismatch", "aborted"), r"\b5\b|rank 3")

    def test_two_ranks_of_one_number(self):
        cluster = Cluster(self, 1, SHORT)
        ranks = cluster.start(["join"], 2, ranks=[0])
        twin = cluster.start(["join"], 2, ranks=[])
        self.assertEqual(twin, {})
        cluster.jobs = 0
        twins = cluster.start(["join"], 2, ranks=[0])
        both = {0: ranks[0], 1: twins[0]}
        self.expect_errors(both, OPERATION_TIMEOUT + SLACK, ("mismatch", "aborted", "invalid", "timeout"),
                           r"rank [01]\b")


class Absence(ClusterTest):
    def test_a_rank_that_never_joins(self):
        cluster = Cluster(self, 2, SHORT)
        started = time.monotonic()
        ranks = cluster.start(["join"], 2, ranks=[0, 1, 2])
        line = cluster.daemons[0].wait_log("event=ranks_missing", OPERATION_TIMEOUT + SLACK)
        self.assertIn('missing="rank 3 of 4"', line)
        self.assertIn("(rank 2)", line)
        self.expect_errors(ranks, OPERATION_TIMEOUT + SLACK, ("timeout", "aborted"), r"rank 3\b")
        self.assertGreater(time.monotonic() - started, OPERATION_TIMEOUT - 0.5)

    def test_a_rank_that_never_creates_the_bucket(self):
        cluster = Cluster(self, 2, SHORT)
        ranks = cluster.start(
            lambda rank: ["join", "forever"] if rank == 1 else ["join", "bucket:b:float32:1000:gradient"], 2)
        ranks.pop(1)
        self.expect_errors(ranks, OPERATION_TIMEOUT + SLACK + 1, ("timeout", "aborted"), r"rank 1\b")

    def test_a_rank_that_never_submits(self):
        for silent in (0, 3):
            with self.subTest(rank=silent):
                cluster = Cluster(self, 2, SHORT)
                ranks = cluster.start(
                    lambda rank, silent=silent: SETUP + ["barrier", "forever" if rank == silent else "reduce:b"], 2)
                self.wait_all_ok(ranks, "barrier")
                ranks.pop(silent)
                self.expect_errors(ranks, OPERATION_TIMEOUT + PEER_TIMEOUT + SLACK, ("timeout", "aborted"),
                                   rf"rank {silent}\b")

    def test_a_wait_that_times_out_leaves_the_operation_alone(self):
        cluster = Cluster(self, 2, CLOCKS)
        ranks = cluster.start(lambda rank: SETUP + ["barrier"] + (
            ["submit:b", "wait:b:200"] if rank == 0 else ["sleep:600", "reduce:b", "leave"]), 1)
        step, seconds, status, _ = ranks[0].wait_error(30)
        self.assertEqual((step, status), ("wait:b:200", "timeout"))
        self.assertLess(seconds, 0.2 + SLACK)

    def test_late_but_in_time_is_no_failure(self):
        cluster = Cluster(self, 2, CLOCKS)
        ranks = cluster.start(
            lambda rank: SETUP + ["sleep:1500" if rank == 2 else "sleep:1", "reduce:b", "leave"], 2)
        self.wait_all_ended(ranks)


class Values(ClusterTest):
    def test_exact_types_broadcast_and_barrier(self):
        cluster = Cluster(self, 2)
        steps = ["join", "bucket:f:float32:1001", "bucket:i:int32:7", "bucket:l:int64:70000",
                 "reduce:f:5", "reduce:i:5", "reduce:l:5", "broadcast:f:3", "broadcast:i:0", "broadcast:l:1",
                 "barrier", "reduce:f", "leave"]
        self.wait_all_ended(cluster.start(steps, 2))

    def test_a_nan_is_reported_to_all_and_forgotten(self):
        for codec in ("none", "laco"):
            cluster = Cluster(self, 2, {"compression.codec": codec})
            steps = ["join", "bucket:b:float32:100000:gradient", "reduce:b:2", "poison:b", "reduce:b:2", "leave"]
            self.wait_all_ended(cluster.start(steps, 2))
            # An ended job is shown for a while, with its buckets.
            cluster.daemons[0].wait_status(
                lambda r: [b["not_finite_operations"] for b in r["jobs"][0]["buckets"] if b["name"] == "b"] == [1], 3)

    def test_two_jobs_at_a_time(self):
        cluster = Cluster(self, 2)
        steps = SETUP + ["reduce:b:20", "leave"]
        first, second = cluster.start(steps, 2), cluster.start(steps, 1)
        self.wait_all_ended(first)
        self.wait_all_ended(second)


if __name__ == "__main__":
    unittest.main()
