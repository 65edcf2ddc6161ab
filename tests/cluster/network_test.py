"""A real network: four hosts on links of 1 gbit, UCX over tcp."""
import json
import time
import unittest

from harness import COMMAND, Cluster, NetlabTest

HOSTS = 4
CLOCKS = {"clocks.peer_timeout": "2s", "clocks.operation_timeout": "60s"}


class Network(NetlabTest):
    hosts = HOSTS

    def bench(self, cluster, *options):
        ranks = cluster.start([], 1, command=[COMMAND, "bench", "--json", "--verify", *options])
        self.wait_all_ended(ranks, 100)
        rank = ranks[0]
        try:
            rank.output.wait_for("$^", 1)
        except AssertionError:
            pass
        return json.loads("\n".join(rank.output.lines))["results"]

    def test_results_are_right_with_every_codec(self):
        for codec in ("none", "l8", "lads", "laco"):
            with self.subTest(codec=codec):
                cluster = Cluster(self, HOSTS, dict(CLOCKS, **{"compression.codec": codec}), self.lab)
                results = self.bench(cluster, "--sizes", "4KiB,1MiB", "--iterations", "5")
                self.assertEqual([result["verified"] for result in results], [True, True], results)

    def test_interface_counters_agree_with_status(self):
        for codec in ("none", "l8"):
            with self.subTest(codec=codec):
                cluster = Cluster(self, HOSTS, dict(CLOCKS, **{"compression.codec": codec}), self.lab)
                before = [self.lab.sent_bytes(i) for i in range(HOSTS)]
                self.bench(cluster, "--sizes", "25000000", "--iterations", "5", "--warmup", "0")
                for i, daemon in enumerate(cluster.daemons):
                    sent = self.lab.sent_bytes(i) - before[i]
                    _, report = daemon.status()
                    said = sum(job["wire_bytes"] for job in report["jobs"])
                    print(f"{codec}: {daemon.name} put {sent} bytes on its link, status says {said} "
                          f"({sent / said - 1:+.2%})", flush=True)
                    self.assertAlmostEqual(sent / said, 1.0, delta=0.05, msg=f"{daemon.name}: {sent} and {said}")

    def test_a_cut_link_is_told_within_the_clock_and_names_the_node(self):
        cluster = Cluster(self, HOSTS, CLOCKS, self.lab)
        ranks = cluster.start(["join", "bucket:b:float32:1000000:gradient", "reduce:b", "reduce:b:1000000"], 1)
        self.wait_all_ok(ranks, "reduce:b")
        time.sleep(0.3)
        self.lab.cut(2)
        others = {rank: ranks[rank] for rank in ranks if rank != 2}
        self.expect_errors(others, 2.0 + 2.0, ("aborted",), r"node2\b")
        self.expect_errors({2: ranks[2]}, 2.0 + 2.0, ("aborted",), r"node")

    def test_a_short_break_is_survived(self):
        cluster = Cluster(self, HOSTS, CLOCKS, self.lab)
        ranks = cluster.start(
            ["join", "bucket:b:float32:1000000:gradient", "reduce:b", "reduce:b:60", "leave"], 1)
        self.wait_all_ok(ranks, "reduce:b")
        self.lab.cut(1)
        time.sleep(0.5)
        self.lab.heal(1)
        self.wait_all_ended(ranks, 60)


if __name__ == "__main__":
    unittest.main()
