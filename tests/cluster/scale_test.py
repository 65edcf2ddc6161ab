"""Many layers, many buckets, long and odd names, many ranks: on real daemons."""
import unittest

from harness import Cluster, ClusterTest

PATIENCE = 60  # seconds
SHOWN = 3  # seconds until status shows what was done
CLOCKS = {"clocks.peer_timeout": "5s", "clocks.operation_timeout": "120s", "clocks.stall_warning": "60s"}


def operations(report):
    """How many operations the job's buckets have done."""
    return {bucket["operations"] for job in report["jobs"] for bucket in job["buckets"] if bucket["bucket"] != 0}


class Scale(ClusterTest):
    def test_100000_layers_in_one_bucket(self):
        for codec in ("none", "laco"):
            with self.subTest(codec=codec):
                cluster = Cluster(self, 2, dict(CLOCKS, **{"compression.codec": codec}))
                ranks = cluster.start(["join", "layers:wide:100000:20:gradient", "reduce:wide:3", "barrier", "forever"])
                self.wait_all_ok(ranks, "barrier", PATIENCE)
                took = ranks[0].output.lines
                print(f"{codec}: {[line for line in took if 'wide' in line]}", flush=True)
                _, report = cluster.daemons[0].wait_status(lambda r: {3} == operations(r), SHOWN)
                (bucket,) = [b for b in report["jobs"][0]["buckets"] if b["name"] == "wide"]
                self.assertEqual((bucket["elements"], bucket["codec"]), (2_000_000, codec))

    def test_5000_buckets_in_one_job_in_any_order(self):
        cluster = Cluster(self, 2, CLOCKS)
        go = cluster.folder / "go"
        ranks = cluster.start(["join", "buckets:b:5000:16", "all:b:1", "all:b:2", "barrier", f"until:{go}", "leave"])
        self.wait_all_ok(ranks, "barrier", PATIENCE)
        print([line for line in ranks[0].output.lines if ":b:" in line], flush=True)
        for daemon in cluster.daemons:
            code, report = daemon.wait_status(lambda r: {2} == operations(r), SHOWN)
            self.assertEqual((code, report["records_dropped"]), (0, 0), report["reasons"])
            self.assertEqual(len([b for b in report["jobs"][0]["buckets"] if b["bucket"] != 0]), 5000)
        go.touch()
        self.wait_all_ended(ranks)
        # Nothing of it stands in the next one's way.
        self.wait_all_ended(cluster.start(["join", "buckets:b:50:16", "all:b:3", "leave"]))

    def test_names_of_4_kib_and_of_all_the_world(self):
        long = "x" * 4090 + "é" * 3
        names = ["层/слой/שכבה/🦆 e\u0301", long, "a\\b\"c'd%s{}", "\u0633\u0644\u0627\u0645"]
        cluster = Cluster(self, 2, CLOCKS)
        steps = ["join"]
        for name in names:
            steps += [f"bucket:{name}:float32:64:exact:{name}", f"reduce:{name}:2"]
        for name in ("tab\there", "esc\x1b[31m", "csi\u009b31m", "\u202egnirts"):
            steps += [f"expect:invalid:bucket:{name}:float32:64"]
        ranks = cluster.start([*steps, "barrier", "forever"], job="作業 \U0001f986")
        self.wait_all_ok(ranks, "barrier")
        for daemon in cluster.daemons:
            code, report = daemon.wait_status(lambda r: {2} == operations(r), SHOWN)  # that is JSON
            self.assertEqual((code, report["jobs"][0]["name"]), (0, "作業 \U0001f986"))
            shown = {b["name"] for b in report["jobs"][0]["buckets"] if b["bucket"] != 0}
            self.assertEqual(len(shown), len(names))
            self.assertIn(names[0], shown)
            self.assertTrue(any(name.startswith("x" * 100) for name in shown))
            code, table = daemon.status_text("--all")
            self.assertEqual(code, 0)
            bad = [c for c in table if c != "\n" and (ord(c) < 32 or ord(c) == 127)]
            self.assertEqual(bad, [], "a name wrote control characters to the terminal")
            self.assertLess(max(map(len, table.splitlines())), 1000)

    def test_a_layer_name_of_more_than_4_kib_is_refused_clearly(self):
        cluster = Cluster(self, 1, CLOCKS)
        ranks = cluster.start(["join", "expect:invalid:bucket:b:float32:64:exact:" + "x" * 4097, "leave"])
        self.wait_all_ended(ranks)

    def test_sixteen_ranks_on_four_daemons(self):
        cluster = Cluster(self, 4, CLOCKS)
        steps = ["join", "bucket:f:float32:64000", "bucket:l:int64:1616", "bucket:g:float32:64000:gradient"]
        work = ["reduce:f:3", "allgather:f", "scatter:f", "allgather:l", "scatter:l", "reduce:l:2", "reduce:g:2",
                "broadcast:f:13", "scatter:g"]
        ranks = cluster.start([*steps, *work, *work[:3], "barrier", "leave"], 4)
        self.wait_all_ended(ranks, PATIENCE)
        _, report = cluster.daemons[3].wait_status(lambda r: r["jobs"], SHOWN)
        self.assertEqual((report["jobs"][0]["world"], report["jobs"][0]["nodes"]), (16, 4))


if __name__ == "__main__":
    unittest.main()
