"""Links that break for a second, for ten, and for ever. Needs root: the network is made of namespaces."""
import time
import unittest

from harness import Cluster, NetlabTest

HOSTS = 3
PEER_TIMEOUT = 2.0  # seconds
MARGIN = 1.0  # what an error on all sides may take beyond peer_timeout
CLOCKS = {"clocks.peer_timeout": "2s", "clocks.operation_timeout": "60s"}
SETUP = ["join", "bucket:b:float32:1000000:gradient", "bucket:x:int64:100000", "reduce:b", "reduce:x", "barrier"]


class Links(NetlabTest):
    hosts = HOSTS

    def cut_in_the_middle(self, cluster, node, steps):
        ranks = cluster.start([*SETUP, *steps])
        self.wait_all_ok(ranks, "barrier")
        time.sleep(0.3)
        self.lab.cut(node)
        return ranks, time.monotonic()

    def expect_all_told(self, ranks, node):
        """The ranks on the cut node hear of the nodes that they lost, or of the coordinator."""
        cut = {node: ranks[node]}
        rest = {rank: ranks[rank] for rank in ranks if rank != node}
        self.expect_errors(rest, PEER_TIMEOUT + MARGIN, ("aborted",), rf"node{node}\b")
        self.expect_errors(cut, MARGIN, ("aborted",), r"node\d\b")

    def test_a_second_is_survived_with_right_results(self):
        cluster = Cluster(self, HOSTS, CLOCKS, self.lab)
        for node in (1, 0):  # 0 coordinates
            with self.subTest(node=node):
                ranks, _ = self.cut_in_the_middle(cluster, node, ["reduce:x:150", "reduce:b:20", "leave"])
                time.sleep(1)
                self.lab.heal(node)
                self.wait_all_ended(ranks, 80)

    def test_ten_seconds_are_an_error_on_all_sides_and_the_next_job_works(self):
        cluster = Cluster(self, HOSTS, CLOCKS, self.lab)
        ranks, cut = self.cut_in_the_middle(cluster, 2, ["reduce:b:1000000"])
        self.expect_all_told(ranks, 2)
        time.sleep(max(cut + 10 - time.monotonic(), 0))
        self.lab.heal(2)
        self.wait_all_ended(cluster.start([*SETUP, "reduce:x:5", "leave"]), 40)

    def test_for_ever_is_an_error_on_all_sides_also_where_the_coordinator_is_cut(self):
        cluster = Cluster(self, HOSTS, CLOCKS, self.lab)
        ranks, _ = self.cut_in_the_middle(cluster, 0, ["reduce:b:1000000"])
        cut = {0: ranks.pop(0)}
        self.expect_errors(ranks, PEER_TIMEOUT + MARGIN, ("aborted",), r"node\d\b")
        self.expect_errors(cut, MARGIN, ("aborted",), r"node[12]\b")

    def test_an_idle_job_hears_of_a_cut_too(self):
        cluster = Cluster(self, HOSTS, CLOCKS, self.lab)
        ranks, _ = self.cut_in_the_middle(cluster, 1, ["sleep:4000", "reduce:x"])
        self.expect_errors({0: ranks[0]}, 4 + MARGIN, ("aborted",), r"node1\b")
        step, seconds, _, _ = ranks[2].wait_error(MARGIN)
        self.assertEqual(step, "reduce:x")
        self.assertLess(seconds, MARGIN, "the job had ended before")


if __name__ == "__main__":
    unittest.main()
