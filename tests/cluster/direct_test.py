"""Shares that go straight to their owners: every daemon talks to every other one."""
import unittest

from harness import Cluster, ClusterTest, NetlabTest

CLOCKS = {"clocks.peer_timeout": "2s", "clocks.operation_timeout": "60s", "clocks.stall_warning": "300ms"}
DIRECT = dict(CLOCKS, **{"plan.algorithm": "direct", "compression.codec": "none"})
BUCKETS = ["bucket:large:float32:700000:gradient", "bucket:small:float32:904:gradient", "bucket:i:int32:80"]
WORK = ["reduce:large:5", "reduce:small:200", "broadcast:small:2", "reduce:small:20", "allgather:small", "reduce:i:20"]


class Direct(ClusterTest):
    def test_sums_are_right_among_all_kinds_of_operations(self):
        cluster = Cluster(self, 4, DIRECT)
        self.wait_all_ended(cluster.start(["join", *BUCKETS, *WORK, "barrier", *WORK, "leave"], 2))

    def test_compressed_gradients_arrive_and_votes_go_around(self):
        for codec in ("laco", "sign"):
            with self.subTest(codec=codec):
                cluster = Cluster(self, 3, dict(DIRECT, **{"compression.codec": codec}))
                self.wait_all_ended(cluster.start(["join", *BUCKETS, "noise:large:20", "noise:small:20", "leave"]))

    def test_a_death_is_told_to_all_with_its_cause(self):
        cluster = Cluster(self, 4, DIRECT)
        for victim in (1, 3):
            ranks = cluster.start(["join", *BUCKETS, "barrier", "reduce:large:1000000"])
            self.wait_all_ok(ranks, "barrier")
            ranks.pop(victim).kill()
            self.expect_errors(ranks, 4, ("aborted",), rf"rank {victim}\b")
        self.wait_all_ended(cluster.start(["join", *BUCKETS, *WORK, "leave"]))

    def test_a_daemons_death_is_told_to_all(self):
        cluster = Cluster(self, 4, DIRECT)
        ranks = cluster.start(["join", *BUCKETS, "barrier", "reduce:large:1000000"])
        self.wait_all_ok(ranks, "barrier")
        cluster.daemons[2].kill()
        ranks.pop(2)
        self.expect_errors(ranks, 6, ("aborted",), r"node2\b")


class Hosts(NetlabTest):
    hosts = 4

    def test_everybody_lets_everybody_in(self):
        cluster = Cluster(self, 4, DIRECT, self.lab)
        self.wait_all_ended(cluster.start(["join", *BUCKETS, *WORK, "leave"]))


if __name__ == "__main__":
    unittest.main()
