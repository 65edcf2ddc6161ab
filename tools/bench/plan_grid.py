#!/usr/bin/env python3
"""Holds the planner against every pinned choice, on a grid of sizes and rates in private shaped networks.

    plan_grid.py --build build/release [--rounds 3] [--codec laco] [--case 2x1gbit:8MB]... [--budget 840]

A row of the grid starts daemons for `auto` and for each of {none, CODEC} x {ring, direct} (of two hosts both ways
are one), and runs `gradwire bench` under all of them in turn, round by round, so that a machine whose speed drifts
treats all alike. Prints a markdown table for docs/benchmarks.md: the goal is at most 1.10 in every row. What does
not fit into the budget (seconds) is left out and named. Needs root, ip and tc.
"""
import argparse
import itertools
import os
import pathlib
import re
import statistics
import sys
import time

from compare import ROOT, Case, Cleanup, machine, run_gradwire, seconds

CASES = [f"2x{rate}:{size}" for rate, size in itertools.product(("100mbit", "1gbit", "none"),
                                                                ("64KiB", "1MB", "8MB", "25MB"))] + ["4x1gbit:8MB"]
RUN_SECONDS = 1.5  # that an exact ring would take for a run's operations


class GridCase(Case):
    def __init__(self, text):
        super().__init__(text)
        from netlab import bits_per_second
        rate = bits_per_second(self.rate) if self.rate != "none" else 8 * 10**9
        exact = self.bytes * 8 * 2 * (self.hosts - 1) / self.hosts / rate
        self.iterations = max(3, min(200, int(RUN_SECONDS / exact)))
        self.warmup = max(1, min(10, self.iterations // 3))

    def __str__(self):
        return f"{self.hosts} hosts, {self.rate}, {self.size}"


def variants(codec, hosts):
    """Settings by name; the first is the planner's own."""
    base = {"compression.codec": codec, "compression.warm_start_steps": "0"}
    out = {"auto": {**base, "plan.algorithm": "auto", "plan.bypass": "auto", "plan.segment": "0"}}
    for algorithm in ("ring", "direct") if hosts > 2 else ("ring",):
        for name, bypass in (("none", "always"), (codec, "never")):
            out[f"{name} by {algorithm}"] = {**base, "plan.algorithm": algorithm, "plan.bypass": bypass}
    return out


def planned(cluster):
    """What the coordinator has chosen for the last bucket."""
    found = re.findall(r'event=plan .*?plan="?([^",]+)', cluster.daemons[0].log.read_text(errors="replace"))
    return found[-1] if found else "not measured"


def measure(build, case, codec, rounds):
    """Medians over rounds in seconds, by variant, and what the planner chose in each round."""
    from harness import Cluster
    from netlab import Netlab
    samples, chosen = {}, []
    with Cleanup() as cleanup:
        lab = Netlab(case.hosts, case.rate)
        cleanup.addCleanup(lab.close)
        clusters = {name: Cluster(cleanup, case.hosts, settings, lab)
                    for name, settings in variants(codec, case.hosts).items()}
        for number in range(rounds):
            for name, cluster in clusters.items():
                samples.setdefault(name, []).append(run_gradwire(build, cluster, case)["median_seconds"])
            chosen.append(planned(clusters["auto"]))
            print(f"{case}: round {number + 1} of {rounds}", file=sys.stderr)
    return {name: statistics.median(values) for name, values in samples.items()}, chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="laco")
    parser.add_argument("--case", type=GridCase, action="append", dest="cases")
    parser.add_argument("--budget", type=float, default=840)
    options = parser.parse_args()
    build = options.build.resolve()
    os.environ["GRADWIRED"] = str(build / "daemon" / "gradwired")
    os.environ["GRADWIRE_COMMAND"] = str(build / "tools" / "gradwire")
    from netlab import missing
    reason = missing()
    if reason:
        sys.exit(f"plan_grid.py: {reason}")

    print(f"{machine()}; codec {options.codec}, medians over {options.rounds} interleaved rounds.\n")
    print("| hosts | link | size | auto | the planner chose | best pinned | its time | auto / best |")
    print("|---|---|---|---|---|---|---|---|")
    started, longest, worst, left_out = time.monotonic(), 0.0, 0.0, []
    for case in options.cases or [GridCase(text) for text in CASES]:
        before = time.monotonic()
        if before - started + longest > options.budget:
            left_out.append(str(case))
            continue
        medians, chosen = measure(build, case, options.codec, options.rounds)
        longest = max(longest, time.monotonic() - before)
        auto = medians.pop("auto")
        best = min(medians, key=medians.get)
        worst = max(worst, auto / medians[best])
        link = "unshaped" if case.rate == "none" else case.rate
        print(f"| {case.hosts} | {link} | {case.size} | {seconds(auto)} | {' / '.join(sorted(set(chosen)))} | {best} | "
              f"{seconds(medians[best])} | {auto / medians[best]:.2f} |", flush=True)
    print(f"\nThe worst row is {worst:.2f}; the goal is 1.10.")
    if left_out:
        print(f"Left out for want of time: {'; '.join(left_out)}.")


if __name__ == "__main__":
    main()
