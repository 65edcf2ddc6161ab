"""Trainers and daemons that are stopped for a while (SIGSTOP): the right clock applies, and names the right one."""
import signal
import time
import unittest

from harness import Cluster, ClusterTest

PEER_TIMEOUT = 1.0  # seconds
OPERATION_TIMEOUT = 4.0
SLACK = 2.0  # for a loaded machine
CLOCKS = {"clocks.peer_timeout": "1s", "clocks.operation_timeout": "4s", "clocks.stall_warning": "500ms"}
PATIENT = dict(CLOCKS, **{"clocks.operation_timeout": "60s"})
SETUP = ["join", "bucket:b:float32:100000:gradient", "reduce:b:3", "barrier"]
ENDLESS = SETUP + ["reduce:b:1000000"]


def stalls(report):
    return any(job["stall"] for job in report["jobs"])


class Trainers(ClusterTest):
    def stop(self, cluster, victim, steps):
        """The ranks, with `victim` stopped before the operations of `steps`, where the others wait for it; and when."""
        go = cluster.folder / "go"
        ranks = cluster.start([*SETUP, f"until:{go}", *steps], 2)
        self.wait_all_ok(ranks, "barrier")
        time.sleep(0.2)
        ranks[victim].kill(signal.SIGSTOP)
        go.touch()
        return ranks, time.monotonic()

    def test_a_stopped_trainer_is_named_in_log_and_status_and_fails_the_operation_at_its_deadline(self):
        cluster = Cluster(self, 2, CLOCKS)
        ranks, stopped = self.stop(cluster, 3, ["reduce:b"])
        for daemon in cluster.daemons:  # rank, bucket, sequence number, phase
            code, report = daemon.wait_status(stalls, 0.5 + SLACK)
            sentence = report["jobs"][0]["stall"]
            self.assertEqual((code, report["state"]), (1, "degraded"))
            self.assertRegex(sentence, r"(?s)(?=.*\brank 3\b)(?=.*bucket 'b')(?=.*#\d+)(?=.*gathering)")
            self.assertIn(sentence, " ".join(report["reasons"]))
            daemon.wait_log(r"(?=.*stall)(?=.*\brank 3\b)(?=.*bucket 'b')(?=.*#\d+)(?=.*gathering)", SLACK)
        _, report = cluster.daemons[1].status()
        (bucket,) = [b for b in report["jobs"][0]["buckets"] if b["name"] == "b"]
        self.assertEqual((bucket["phase"], bucket["missing_ranks"]), ("gathering", 1))
        victim = ranks.pop(3)
        self.expect_errors(ranks, OPERATION_TIMEOUT + SLACK, ("aborted",), r"(?=.*operation_timeout)(?=.*rank 3\b)")
        self.assertGreater(time.monotonic() - stopped, OPERATION_TIMEOUT - 0.5)
        victim.kill(signal.SIGCONT)
        self.expect_errors({3: victim}, SLACK, ("aborted",), r"rank 3\b")
        self.wait_all_ended(cluster.start(SETUP + ["leave"], 2))

    def test_a_trainer_that_pauses_for_less_than_the_operations_clock_is_waited_for(self):
        cluster = Cluster(self, 2, PATIENT)
        ranks, _ = self.stop(cluster, 2, ["reduce:b:50", "leave"])
        # More than peer_timeout, which is not the clock of a process that lives.
        cluster.daemons[0].wait_status(stalls, 0.5 + SLACK)
        time.sleep(PEER_TIMEOUT)
        ranks[2].kill(signal.SIGCONT)
        self.wait_all_ended(ranks)
        for daemon in cluster.daemons:
            daemon.wait_status(lambda r: r["jobs"][0]["state"] == "ended", SLACK)
        _, report = cluster.daemons[1].status()  # a daemon knows how late its own ranks were
        late = {rank["rank"]: rank["late_max_seconds"] for rank in report["jobs"][0]["ranks"]}
        self.assertEqual(sorted(late), [2, 3])
        self.assertGreater(late[2], PEER_TIMEOUT)
        self.assertLess(late[3], PEER_TIMEOUT)

    def test_a_warning_goes_away_when_the_operation_moves_again(self):
        cluster = Cluster(self, 2, PATIENT)
        ranks, _ = self.stop(cluster, 1, ["reduce:b:50", "forever"])
        for daemon in cluster.daemons:
            daemon.wait_status(stalls, 0.5 + SLACK)
        ranks[1].kill(signal.SIGCONT)
        for daemon in cluster.daemons:
            daemon.wait_status(lambda r: r["state"] == "healthy" and not stalls(r), SLACK)


class Daemons(ClusterTest):
    def test_a_stopped_daemon_is_gone_for_its_peers_and_its_own_trainers_and_comes_back(self):
        for victim in (1, 0):  # an ordinary node, and the coordinator
            with self.subTest(node=victim):
                cluster = Cluster(self, 2, PATIENT)
                ranks = cluster.start(ENDLESS, 2)
                self.wait_all_ok(ranks, "barrier")
                time.sleep(0.2)
                cluster.daemons[victim].kill(signal.SIGSTOP)
                local = {rank: ranks[rank] for rank in ranks if rank // 2 == victim}
                remote = {rank: ranks[rank] for rank in ranks if rank // 2 != victim}
                self.expect_errors(remote, PEER_TIMEOUT + SLACK, ("aborted",), rf"node{victim}\b")
                # A second more than the peers, whose sentence would have told more.
                self.expect_errors(local, 1 + SLACK, ("unavailable",), r"gradwired")
                code, _ = cluster.daemons[victim].wait_status(lambda r: r["state"] == "wedged", 3 + SLACK)
                self.assertEqual(code, 1)
                cluster.daemons[victim].kill(signal.SIGCONT)
                self.wait_all_ended(cluster.start(SETUP + ["leave"], 2))

    def test_a_pause_shorter_than_the_peers_clock_is_survived(self):
        cluster = Cluster(self, 2, dict(PATIENT, **{"clocks.peer_timeout": "2s"}))
        for victim in (0, 1):
            with self.subTest(node=victim):
                go = cluster.folder / f"go{victim}"
                ranks = cluster.start(["join", "bucket:x:int64:500000", "reduce:x:3", "barrier", f"until:{go}",
                                       "reduce:x:20", "leave"], 2)
                self.wait_all_ok(ranks, "barrier")
                go.touch()
                time.sleep(0.02)
                cluster.daemons[victim].kill(signal.SIGSTOP)
                time.sleep(1.0)
                cluster.daemons[victim].kill(signal.SIGCONT)
                self.wait_all_ended(ranks)

    def test_a_machine_that_sleeps_with_all_on_it_goes_on(self):
        cluster = Cluster(self, 1, PATIENT)
        go = cluster.folder / "go"
        ranks = cluster.start([*SETUP, f"until:{go}", "reduce:b:300", "leave"], 2)
        self.wait_all_ok(ranks, "barrier")
        go.touch()
        time.sleep(0.02)
        everybody = [rank.process for rank in ranks.values()] + [cluster.daemons[0].process]
        for process in everybody:  # the whole machine, as it were
            process.send_signal(signal.SIGSTOP)
        time.sleep(PEER_TIMEOUT + 1.5)
        for process in everybody:
            process.send_signal(signal.SIGCONT)
        self.wait_all_ended(ranks)


if __name__ == "__main__":
    unittest.main()
