"""Jobs that come back: after a daemon's death under living trainers, and after a rank's."""
import re
import time
import unittest

from harness import Cluster, ClusterTest

SLACK = 2.0  # for a loaded machine
# Far beyond what an error "at once" may take.
SLOW = {"clocks.peer_timeout": "8s", "clocks.operation_timeout": "60s"}
LACO = {"clocks.peer_timeout": "1s", "clocks.operation_timeout": "60s", "compression.codec": "laco",
        "compression.warm_start_steps": "0", "compression.density": "0.001"}
EXACT = "bucket:b:float32:50000"
OTHER = "bucket:c:int64:70"
LAST = "reduce:b:1000000"
ROUNDS = 12
FEEDBACK = "bucket:g:float32:100000:gradient"


def progress(said):
    """What the step "past" printed, as numbers; None if nothing is known."""
    return None if said == "none" else {key: int(value) for key, value in re.findall(r"(\w+)=(-?\d+)", said)}


class DaemonDeath(ClusterTest):
    def test_trainers_outlive_their_daemon_and_join_the_next_one(self):
        for victim in (1, 0):  # an ordinary node, and the coordinator
            with self.subTest(node=victim):
                cluster = Cluster(self, 2, SLOW)
                go = cluster.folder / "go"
                first = ["join", "epoch", "past:b", EXACT, OTHER, "reduce:b:3", "reduce:c:5", "barrier"]
                again = [f"until:{go}", "rejoin:20000", "epoch", "past:b", "past:c", "past:new", EXACT,
                         "bucket:new:int32:9", "reduce:b:3", "reduce:new", "leave"]
                told = {rank: f"expect:{'unavailable' if rank == victim else 'aborted'}:{LAST}" for rank in (0, 1)}
                ranks = cluster.start(lambda rank: [*first, told[rank], *again])
                for rank in ranks.values():
                    self.assertEqual(rank.wait_said("epoch")[1], "epoch=1")
                    self.assertEqual(rank.wait_said("past:b")[1], "none")
                self.wait_all_ok(ranks, "barrier")
                cluster.daemons[victim].kill()
                for number, rank in ranks.items():
                    _, sentence = rank.wait_said(told[number], SLACK)  # at once: no clock has run out
                    self.assertRegex(sentence, r"gradwired" if number == victim else rf"node{victim}\b")
                cluster.restart(victim)
                go.touch()
                for rank in ranks.values():
                    self.assertEqual(rank.wait_said("epoch")[1], "epoch=2")
                    of_b = progress(rank.wait_said("past:b")[1])
                    of_c = progress(rank.wait_said("past:c")[1])
                    self.assertGreaterEqual(of_b["highest"], 3)
                    self.assertEqual(of_b["lowest"], of_b["highest"])  # one node knows
                    self.assertEqual(of_c, {"epoch": 1, "lowest": 5, "highest": 5, "rank": 1 - victim, "unknown": 1})
                    self.assertEqual(rank.wait_said("past:new")[1], "none")
                self.wait_all_ended(ranks)

    def test_a_daemon_starts_over_what_a_killed_one_left(self):
        cluster = Cluster(self, 1, SLOW)
        ranks = cluster.start([*["join", EXACT, "reduce:b"], f"expect:unavailable:{LAST}"], 2)
        self.wait_all_ok(ranks, "reduce:b")
        daemon = cluster.daemons[0]
        before = sorted(path.name for path in daemon.folder.iterdir())
        daemon.kill()
        self.wait_all_ended(ranks, SLACK)
        daemon.process.wait(SLACK)  # the ranks hear of its end while the kernel still closes its files
        code, report = daemon.status()
        self.assertEqual((code, report["state"]), (3, "stale"))
        self.assertEqual(sorted(path.name for path in daemon.folder.iterdir()), before)
        for _ in range(2):
            cluster.restart(0)
            self.wait_all_ended(cluster.start(["join", EXACT, "reduce:b:3", "leave"], 2))
            self.assertEqual(sorted(path.name for path in daemon.folder.iterdir()), before)
            cluster.daemons[0].kill()
            cluster.daemons[0].process.wait()


class RankDeath(ClusterTest):
    def broken_job(self, cluster, first, rejoin, again):
        """Two ranks on two nodes; rank 1 dies in epoch 1. Returns the survivor and a function that starts
        both ranks' second epoch."""
        go = cluster.folder / "go"
        ranks = cluster.start(lambda rank: ["join", *first, "barrier", *(
            [f"expect:aborted:{LAST}", f"until:{go}", rejoin, *again] if rank == 0 else ["forever"])], job="train")
        self.wait_all_ok(ranks, "barrier")
        ranks[1].kill()
        survivor = ranks[0]
        _, sentence = survivor.wait_said(f"expect:aborted:{LAST}", 1 + SLACK)
        self.assertRegex(sentence, r"rank 1\b")

        def go_on(join="join"):
            restarted = cluster.start([join, *again], ranks=[1], job="train")[1]
            go.touch()
            return {0: survivor, 1: restarted}

        return survivor, go_on

    def test_the_next_epoch_knows_how_far_the_last_one_came(self):
        cluster = Cluster(self, 2, LACO)
        again = ["epoch", "past:b", "past:c", "past:idle", "past:unknown", EXACT, "reduce:b:2", "barrier", "leave"]
        _, go_on = self.broken_job(cluster, [EXACT, OTHER, "bucket:idle:int32:8", "reduce:b:3", "reduce:c:4"],
                                   "rejoin", again)
        ranks = go_on()
        for rank in ranks.values():
            self.assertEqual(rank.wait_said("epoch")[1], "epoch=2")
            for name, done in (("b", 3), ("c", 4)):  # LAST never completed
                self.assertEqual(progress(rank.wait_said(f"past:{name}")[1]),
                                 {"epoch": 1, "lowest": done, "highest": done, "rank": 0, "unknown": 0})
            self.assertEqual(progress(rank.wait_said("past:idle")[1]),
                             {"epoch": 1, "lowest": 0, "highest": 0, "rank": -1, "unknown": 0})
            self.assertEqual(rank.wait_said("past:unknown")[1], "none")
        self.wait_all_ended(ranks)

    def test_killed_in_the_middle_the_nodes_are_at_most_one_operation_apart(self):
        cluster = Cluster(self, 2, LACO)
        first, again = ["join", "bucket:b:int32:1000000", "reduce:b:2", "barrier"], ["past:b", "leave"]
        survive = [*first, f"expect:aborted:{LAST}", "count", "rejoin", *again]
        apart = 0
        for number in range(ROUNDS):
            job = f"train{number}"
            ranks = cluster.start(lambda rank: [*first, LAST] if rank else survive, job=job)
            self.wait_all_ok(ranks, "barrier")
            time.sleep(0.02 + 0.003 * number)
            ranks[1].kill()
            _, said = ranks[0].wait_said("count", 1 + SLACK)
            done = 2 + int(said.partition("=")[2])
            ranks[1] = cluster.start(["join", *again], ranks=[1], job=job)[1]
            past = [progress(rank.wait_said("past:b")[1]) for rank in ranks.values()]
            self.wait_all_ended(ranks)
            self.assertEqual(past[0], past[1])
            lowest, highest = past[0]["lowest"], past[0]["highest"]
            self.assertTrue(2 <= lowest <= done <= highest <= lowest + 1, (past[0], done))
            self.assertEqual(past[0]["rank"], 0 if done == highest else 1)
            apart += lowest != highest
        print(f"the nodes were one operation apart in {apart} of {ROUNDS} rounds", flush=True)

    def test_a_job_that_ended_in_order_begins_anew(self):
        cluster = Cluster(self, 2, LACO)
        for _ in range(2):
            ranks = cluster.start(["join", "epoch", "past:b", EXACT, "reduce:b:2", "leave"], job="train")
            for rank in ranks.values():
                self.assertEqual(rank.wait_said("epoch")[1], "epoch=1")
                self.assertEqual(rank.wait_said("past:b")[1], "none")
            self.wait_all_ended(ranks)

    # What is poured in as noise stays in the residuals but for a thousandth; zeros show whether it is there.
    POUR = [EXACT, FEEDBACK, "noise:g:8"]
    AGAIN = [FEEDBACK, "zeros:g", "leave"]

    def leftovers(self, ranks):
        """What came out of zeros, the same for both."""
        sizes = {rank.wait_said("zeros:g")[1] for rank in ranks.values()}
        self.wait_all_ended(ranks)
        self.assertEqual(len(sizes), 1, sizes)
        return float(sizes.pop().partition("=")[2])

    def kept(self, cluster):
        return [daemon.status()[1]["kept_residual_bytes"] for daemon in cluster.daemons]

    def test_residuals_go_on_in_the_next_epoch(self):
        cluster = Cluster(self, 2, LACO)
        _, go_on = self.broken_job(cluster, self.POUR, "rejoin", self.AGAIN)
        for daemon in cluster.daemons:
            daemon.wait_status(lambda r: r["kept_residual_bytes"] >= 100000 * 4 and r["kept_residual_jobs"] == 1, SLACK)
        self.assertGreater(self.leftovers(go_on()), 0)
        for daemon in cluster.daemons:
            daemon.wait_status(lambda r: r["kept_residual_bytes"] == 0, SLACK)

    def test_a_fresh_join_drops_them(self):
        cluster = Cluster(self, 2, LACO)
        _, go_on = self.broken_job(cluster, self.POUR, "rejoin", self.AGAIN)
        self.assertEqual(self.leftovers(go_on("join:fresh")), 0)  # one rank's counts for both nodes

    def test_they_expire(self):
        cluster = Cluster(self, 2, dict(LACO, **{"clocks.residual_ttl": "1500ms"}))
        _, go_on = self.broken_job(cluster, self.POUR, "rejoin", self.AGAIN)
        for daemon in cluster.daemons:
            daemon.wait_status(lambda r: r["kept_residual_bytes"] > 0, 1)
        for daemon in cluster.daemons:
            daemon.wait_status(lambda r: r["kept_residual_bytes"] == 0, 1.5 + SLACK)
        self.assertEqual(self.leftovers(go_on()), 0)

    def test_a_daemon_that_was_restarted_has_lost_its_own_and_the_others_have_not(self):
        cluster = Cluster(self, 2, LACO)
        _, go_on = self.broken_job(cluster, self.POUR, "rejoin", self.AGAIN)
        cluster.daemons[1].kill()
        cluster.restart(1)
        cluster.daemons[0].wait_status(lambda r: r["kept_residual_bytes"] > 0, SLACK)
        self.assertEqual(cluster.daemons[1].status()[1]["kept_residual_bytes"], 0)
        self.assertGreater(self.leftovers(go_on()), 0)


if __name__ == "__main__":
    unittest.main()
