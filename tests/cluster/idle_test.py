"""What a daemon costs while nothing happens."""
import os
import time
import unittest

from harness import Cluster, ClusterTest

SECONDS = 5.0
LIMIT = 0.002  # of a core


def cpu_by_thread(pid):
    """{thread: (name, nanoseconds on a core, times it got one)}"""
    out = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="utf-8") as stat:
            run, _, slices = map(int, stat.read().split())
        with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as comm:
            out[thread] = (comm.read().strip(), run, slices)
    return out


class Idle(ClusterTest):
    def test_four_attached_ranks_that_do_nothing_cost_nothing(self):
        cluster = Cluster(self, 2)  # the ordinary clocks
        ranks = cluster.start(["join", "bucket:b:float32:100000:gradient", "reduce:b:20", "barrier", "forever"],
                              places=[0, 0, 0, 0, 1])
        self.wait_all_ok(ranks, "barrier")
        time.sleep(1.5)
        before = [cpu_by_thread(daemon.process.pid) for daemon in cluster.daemons]
        start = time.monotonic()
        time.sleep(SECONDS)
        after = [cpu_by_thread(daemon.process.pid) for daemon in cluster.daemons]
        elapsed = (time.monotonic() - start) * 1e9
        for daemon, old, new in zip(cluster.daemons, before, after):
            self.assertEqual(old.keys(), new.keys())
            threads = {f"{name} {thread}": (run - old[thread][1], slices - old[thread][2])
                       for thread, (name, run, slices) in new.items()}
            share = sum(run for run, _ in threads.values()) / elapsed
            print(f"{daemon.name}: {share:.4%} of a core;",
                  ", ".join(f"{name}: {run / elapsed:.4%} in {slices} wake-ups"
                            for name, (run, slices) in threads.items()), flush=True)
            self.assertLess(share, LIMIT, threads)


if __name__ == "__main__":
    unittest.main()
