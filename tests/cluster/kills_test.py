"""Trainers killed at random moments, again and again, under one job's name: the daemons lose nothing over it.

GRADWIRE_KILL_ROUNDS (default 200) is how often, GRADWIRE_KILL_SEED (default 1) which moments.
"""
import os
import random
import re
import signal
import time
import unittest

from harness import RANK, Cluster, ClusterTest

ROUNDS = int(os.environ.get("GRADWIRE_KILL_ROUNDS", "200"))
SEED = int(os.environ.get("GRADWIRE_KILL_SEED", "1"))
WARM_UP = 40  # rounds, until pools and arenas have their size
RSS_SLACK = 2 << 10  # KiB; leaking one bucket of one round in ten would be more
CHILD_EVERY = 5  # rounds; its descriptors stay open for the rest of the test
SETTINGS = {"clocks.peer_timeout": "1s", "clocks.operation_timeout": "5s", "compression.codec": "laco",
            "compression.warm_start_steps": "0"}
BUCKETS = ["bucket:g:float32:60000:gradient", "bucket:e:int64:3000"]
WORK = ["reduce:g", "reduce:e", "barrier"]
NAME = "again"


class Resources:
    """What a daemon holds."""

    def __init__(self, pid):
        proc = f"/proc/{pid}"
        links = []
        for fd in os.listdir(f"{proc}/fd"):
            try:
                links.append(os.readlink(f"{proc}/fd/{fd}"))
            except FileNotFoundError:
                pass
        with open(f"{proc}/maps", encoding="utf-8") as maps:
            mapped = maps.read().splitlines()
        with open(f"{proc}/status", encoding="utf-8") as status:
            self.rss = int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])
        self.links = sorted(links)
        self.fds = len(links)
        self.threads = len(os.listdir(f"{proc}/task"))
        self.maps = len(mapped)
        self.memfds = sum("memfd:" in text for text in links + mapped)

    def __str__(self):
        return (f"{self.fds} descriptors, {self.threads} threads, {self.maps} mappings, {self.memfds} memfds, "
                f"{self.rss} KiB")


def is_ours(pid):
    try:
        return os.path.samefile(f"/proc/{pid}/exe", RANK)
    except OSError:
        return False


class Kills(ClusterTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.children = []
        self.addCleanup(self.end_children)

    def end_children(self):
        for pid in self.children:
            if is_ours(pid):
                os.kill(pid, signal.SIGKILL)

    def pause(self, most):
        time.sleep(self.random.uniform(0, most))

    def kill(self, rank, others=()):
        rank.kill()
        for other in others:
            other.kill()
        for ended in (rank, *others):
            ended.process.wait()

    def expect_told(self, survivor, victim):
        _, _, status, sentence = survivor.wait_error(4)
        self.assertEqual(status, "aborted", sentence)
        self.assertRegex(sentence, rf"rank {victim}\b")
        survivor.process.wait()

    def round(self, number, cluster):
        victim = self.random.randrange(2)
        child = ["fork:60000"] if number % CHILD_EVERY == 0 else []
        moment = self.random.choice((self.before_or_while_joining, self.alone, self.creating, self.others_create,
                                     self.working, self.working, self.leaving))
        self.ranks = {}
        try:
            moment(cluster, victim, child)
        except AssertionError as error:
            said = {rank: each.output.all_lines() for rank, each in self.ranks.items()}
            raise AssertionError(f"round {number}, {moment.__name__}, of rank {victim}: {error}; {said}") from error

    def start(self, cluster, victim, steps, others):
        self.ranks = cluster.start(lambda rank: steps if rank == victim else others, job=NAME)
        return self.ranks[victim], self.ranks[1 - victim]

    def note_child(self, rank, child):
        for step in child:
            _, said = rank.wait_said(step)
            self.children.append(int(said.partition("=")[2]))

    def before_or_while_joining(self, cluster, victim, _):
        killed, other = self.start(cluster, victim, ["join", "forever"], ["join", "forever"])
        self.pause(0.03)
        self.kill(killed, [other])

    def alone(self, cluster, victim, _):
        killed = cluster.start(["join"], ranks=[victim], job=NAME)[victim]
        self.pause(0.05)
        self.kill(killed)

    def creating(self, cluster, victim, child):
        killed, other = self.start(cluster, victim, ["join", *child, *BUCKETS], ["join", "forever"])
        killed.wait_ok("join")
        self.note_child(killed, child)
        self.pause(0.01)
        self.kill(killed, [other])

    def others_create(self, cluster, victim, child):
        killed, other = self.start(cluster, victim, ["join", *child, "forever"], ["join", *BUCKETS])
        killed.wait_ok("join")
        self.note_child(killed, child)
        self.pause(0.01)
        self.kill(killed)
        self.expect_told(other, victim)

    def working(self, cluster, victim, child):
        steps = ["join", *BUCKETS, *WORK]
        endless = ["reduce:g:1000000"] if self.random.randrange(2) else WORK * 3000
        killed, other = self.start(cluster, victim, [*steps, *child, *endless], [*steps, *endless])
        killed.wait_ok("barrier")
        self.note_child(killed, child)
        self.pause(0.03)
        self.kill(killed)
        self.expect_told(other, victim)

    def leaving(self, cluster, victim, child):
        steps = ["join", *BUCKETS, *WORK]
        killed, other = self.start(cluster, victim, [*steps, *child, "leave"], [*steps, "leave"])
        killed.wait_ok("barrier")
        self.note_child(killed, child)
        self.pause(0.003)
        self.kill(killed)
        code = other.wait_end(5)
        if code != 0:  # it was killed before it had left
            self.expect_told(other, victim)

    def settled(self, daemon, fds=None):
        """Its resources once no job is there and what ends by itself has ended: connections to other daemons."""
        daemon.wait_status(lambda report: all(job["state"] in ("ended", "aborted") for job in report["jobs"]), 5)
        until = time.monotonic() + 5
        resources, still = Resources(daemon.process.pid), 0
        while time.monotonic() < until and (resources.memfds or still < 10 or resources.fds > (fds or resources.fds)):
            time.sleep(0.05)
            before, resources = resources, Resources(daemon.process.pid)
            still = still + 1 if resources.fds == before.fds else 0
        return resources

    def normal_job(self, cluster):
        self.wait_all_ended(cluster.start(["join", *BUCKETS, *WORK * 2, "leave"], job=NAME))

    def test_many_kills_leave_nothing_behind(self):
        cluster = Cluster(self, 2, SETTINGS)
        files = [sorted(os.listdir(daemon.folder)) for daemon in cluster.daemons]
        for number in range(WARM_UP):
            self.round(number, cluster)
        self.normal_job(cluster)
        before = [self.settled(daemon) for daemon in cluster.daemons]
        for number in range(WARM_UP, max(ROUNDS, WARM_UP + 1)):
            self.round(number, cluster)
        self.normal_job(cluster)
        self.assertTrue(any(is_ours(pid) for pid in self.children), "no forked child is alive: a weaker test")
        for daemon, old, listing in zip(cluster.daemons, before, files):
            new = self.settled(daemon, old.fds)
            print(f"{daemon.name}: {old} after {WARM_UP} rounds; {new} after {ROUNDS}", flush=True)
            self.assertEqual((new.fds, new.threads, new.memfds), (old.fds, old.threads, 0),
                             f"{old.links} {new.links}")
            self.assertLessEqual(new.maps, old.maps + 8)
            self.assertLessEqual(new.rss, old.rss + RSS_SLACK)
            self.assertEqual(sorted(os.listdir(daemon.folder)), listing)
            _, report = daemon.status()
            self.assertEqual((report["kept_residual_bytes"], report["kept_residual_jobs"]), (0, 0))
            with open(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children", encoding="utf-8") as children:
                self.assertEqual(children.read(), "")


if __name__ == "__main__":
    unittest.main()
