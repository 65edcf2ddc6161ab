"""Jobs side by side on the same daemons, of one user and of two: none feels what the other does."""
import os
import re
import statistics
import unittest

from harness import Cluster, ClusterTest

CLOCKS = {"clocks.peer_timeout": "2s", "clocks.operation_timeout": "60s", "clocks.stall_warning": "300ms"}
OPEN = dict(CLOCKS, **{"node.socket_mode": "0666"})
BUCKETS = ["bucket:b:float32:50000", "bucket:i:int32:700"]
WORK = ["reduce:b:200", "allgather:i", "scatter:i", "reduce:i:200"]
ROUNDS = 4
GROSS = 5.0  # times slower: a failure; what is measured is printed


class Neighbours(ClusterTest):
    def test_two_runs_of_one_name_at_a_time(self):
        cluster = Cluster(self, 2, CLOCKS)
        jobs = [cluster.start(["join", *BUCKETS, *WORK, "leave"], 2, job="same", GRADWIRE_RUN_ID=run)
                for run in ("1", "2")]
        for ranks in jobs:
            self.wait_all_ended(ranks)

    def test_one_name_for_two_users_is_two_jobs(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become two users")
        cluster = Cluster(self, 2, OPEN)
        for folder in (cluster.folder, *(daemon.folder for daemon in cluster.daemons)):
            folder.chmod(0o711)
        users = (23001, 23002)
        jobs = {user: cluster.start([f"user:{user}", "join", *BUCKETS, *WORK, "barrier", "reduce:b:50", "leave"], 1,
                                    job="same") for user in users}
        for ranks in jobs.values():
            self.wait_all_ended(ranks)
        cluster.daemons[1].wait_status(
            lambda r: {(job["name"], job["uid"]) for job in r["jobs"]} == {("same", user) for user in users}, 3)

    def test_a_users_death_is_not_the_other_users_whose_job_has_the_same_name(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become two users")
        cluster = Cluster(self, 2, OPEN)
        for folder in (cluster.folder, *(daemon.folder for daemon in cluster.daemons)):
            folder.chmod(0o711)
        go = cluster.folder / "go"
        dying = cluster.start(["user:23001", "join", *BUCKETS, "barrier", "reduce:b:1000000"], job="same")
        living = cluster.start(["user:23002", "join", *BUCKETS, "barrier", "reduce:b:300", f"until:{go}",
                                "reduce:b:300", "allgather:i", "leave"], job="same")
        self.wait_all_ok(dying, "barrier")
        self.wait_all_ok(living, "barrier")
        dying.pop(0).kill()
        self.expect_errors(dying, 4, ("aborted",), r"rank 0\b")
        go.touch()
        self.wait_all_ended(living)

    def test_an_abort_stays_in_its_job(self):
        cluster = Cluster(self, 2, CLOCKS)
        go = cluster.folder / "go"
        living = cluster.start(["join", *BUCKETS, "barrier", "reduce:b:1000", f"until:{go}", *WORK, "leave"], 2)
        self.wait_all_ok(living, "barrier")
        for victim in range(4):
            dying = cluster.start(["join", *BUCKETS, "barrier", "reduce:b:1000000"], 2)
            self.wait_all_ok(dying, "barrier")
            dying.pop(victim).kill()
            self.expect_errors(dying, 4, ("aborted",), rf"rank {victim}\b")
        go.touch()
        self.wait_all_ended(living)

    def test_a_stalled_job_does_not_slow_another(self):
        cluster = Cluster(self, 2, CLOCKS)

        def mark(kind, number):
            return cluster.folder / f"{kind}{number}"

        def stalls(rank):  # rank 1 submits late, every round
            steps = ["join", "bucket:big:float32:1000000", "reduce:big", "barrier"]
            for number in range(ROUNDS):
                steps += [f"until:{mark('stall', number)}"] if rank == 0 else [f"until:{mark('end', number)}"]
                steps += ["reduce:big"]
            return [*steps, "leave"]

        measured = ["join", *BUCKETS, "reduce:b:50", "barrier"]
        for number in range(ROUNDS):
            for kind in ("idle", "stalled"):
                measured += [f"until:{mark(kind, number)}", f"time:b:{300 + number}", f"sleep:{number}"]
        other = cluster.start(stalls)
        ranks = cluster.start([*measured, "leave"])
        self.wait_all_ok(other, "barrier")
        self.wait_all_ok(ranks, "barrier")
        times = {"idle": [], "stalled": []}
        for number in range(ROUNDS):
            for kind, all_of_it in times.items():
                if kind == "stalled":
                    mark("stall", number).touch()
                    cluster.daemons[0].wait_status(lambda r: any(job["stall"] for job in r["jobs"]), 5)
                mark(kind, number).touch()
                for rank in ranks.values():
                    _, said = rank.wait_said(f"time:b:{300 + number}", 60)
                    all_of_it.append(int(re.fullmatch(r"median_us=(\d+)", said)[1]))
                    rank.wait_ok(f"sleep:{number}")
            mark("end", number).touch()
            for rank in other.values():
                rank.wait_ok("reduce:big")
        self.wait_all_ended(other)
        self.wait_all_ended(ranks)
        idle, stalled = (statistics.median(times[kind]) for kind in ("idle", "stalled"))
        print(f"an allreduce of 200 kB beside an idle job {idle:.0f} us, beside a stalled one {stalled:.0f} us: "
              f"{stalled / idle:.2f} times", flush=True)
        self.assertLess(stalled / idle, GROSS)


if __name__ == "__main__":
    unittest.main()
