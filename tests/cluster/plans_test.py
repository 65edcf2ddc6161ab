"""Plans on a real network: what two hosts do at 1 gbit, without a limit, and when the limit comes in between."""
import json
import unittest

from harness import COMMAND, Cluster, NetlabTest

ELEMENTS = 4000000
SETTINGS = {"clocks.peer_timeout": "2s", "clocks.operation_timeout": "60s", "plan.bypass": "auto",
            "compression.warm_start_steps": "0"}


class Plans(NetlabTest):
    hosts = 2

    def bucket_of(self, cluster, codec_is=None, patience=30):
        """The bucket as status shows it once an operation is over, or once it has that codec."""
        def bucket(report):
            return next((b for job in report["jobs"] for b in job["buckets"] if b["name"] == "b"), None)

        def holds(report):
            seen = bucket(report)
            return seen and seen["plan_operations"] > 0 and (codec_is is None or seen["codec"] == codec_is)

        _, report = cluster.daemons[0].wait_status(holds, patience)
        return bucket(report)

    def run_job(self, codec, operations, **settings):
        cluster = Cluster(self, 2, {**SETTINGS, "compression.codec": codec, **settings}, self.lab)
        ranks = cluster.start(["join", f"bucket:b:float32:{ELEMENTS}:gradient", "reduce:b",
                               f"reduce:b:{operations}", "leave"], 1)
        self.wait_all_ok(ranks, "reduce:b", 60)
        return cluster, ranks

    def test_at_1_gbit_a_bucket_is_compressed(self):
        self.lab.shape("1gbit")
        cluster, ranks = self.run_job("laco", 20)
        bucket = self.bucket_of(cluster)
        print(json.dumps({key: bucket[key] for key in bucket if "plan" in key or key == "saved_microseconds"}))
        self.assertEqual(bucket["codec"], "laco")
        self.assertLess(bucket["plan_expected_seconds"], bucket["plan_exact_seconds"])
        self.wait_all_ended(ranks, 60)

    def test_where_exact_is_faster_it_is_bypassed(self):
        self.lab.shape("none")
        cluster, ranks = self.run_job("topk", 20)
        bucket = self.bucket_of(cluster)
        print(json.dumps({key: bucket[key] for key in bucket if "plan" in key or key == "saved_microseconds"}))
        self.assertEqual(bucket["codec"], "none")
        self.wait_all_ended(ranks, 60)

    def test_a_link_that_becomes_slow_changes_the_plan_of_a_bucket_in_use(self):
        self.lab.shape("none")
        cluster, ranks = self.run_job("topk", 100000, **{"plan.remeasure": "1s"})
        self.assertEqual(self.bucket_of(cluster)["codec"], "none")
        self.lab.shape("100mbit")
        bucket = self.bucket_of(cluster, codec_is="topk", patience=90)
        self.assertEqual(bucket["plan_changes"], 1)
        for rank in ranks.values():
            rank.kill()


if __name__ == "__main__":
    unittest.main()
