#!/usr/bin/env python3
"""Compares `gradwire bench` with Gloo's ring allreduce in a private shaped network, interleaved.

    compare.py --build build/release [--rounds 5] [--case 4x1gbit:25MB] [--codecs none,l8]

Every round runs Gloo and then every codec, so that a machine whose speed drifts treats all alike. Prints a
markdown table for docs/benchmarks.md. Needs root, ip, tc, and gloo_peer (built where libgloo-dev is installed).
"""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

# Hosts, rate of every link, bytes.
CASES = ["4x1gbit:25MB", "2xnone:25MB", "2xnone:4KiB"]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "kB": 10**3, "MB": 10**6}
RANK_PATIENCE = 300  # seconds


class Cleanup(contextlib.ExitStack):
    """What the harness takes for a test."""

    def addCleanup(self, function, *arguments):
        self.callback(function, *arguments)


class Case:
    def __init__(self, text):
        match = re.fullmatch(r"(\d+)x(none|\d+[kmg]bit):(\d+)(B|KiB|MiB|kB|MB)", text)
        if not match:
            raise argparse.ArgumentTypeError(f"{text!r} is not HOSTSxRATE:SIZE, for example 4x1gbit:25MB")
        self.hosts, self.rate, self.size = int(match[1]), match[2], match[3] + " " + match[4]
        self.bytes = int(match[3]) * UNITS[match[4]]
        # About as long for every size.
        self.iterations = 10 if self.bytes >= 10**6 else 500
        self.warmup = 3 if self.bytes >= 10**6 else 50


def run_all(commands, environments):
    """Starts one command per rank; the standard output of the first."""
    processes = [subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], env=environment,
                                  stdout=subprocess.PIPE, text=True)
                 for command, environment in zip(commands, environments)]
    try:
        outputs = [process.communicate(timeout=RANK_PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise RuntimeError(f"{commands[0]}: exit codes {codes}")
    return outputs[0]


def run_gloo(build, lab, case):
    with tempfile.TemporaryDirectory(prefix="gw-gloo-") as folder:
        commands = [[*lab.prefix(i), str(build / "tools" / "gloo_peer"), str(i), str(case.hosts), folder,
                     lab.address(i), str(case.bytes), str(case.iterations), str(case.warmup)]
                    for i in range(case.hosts)]
        return json.loads(run_all(commands, [None] * case.hosts))


def run_gradwire(build, cluster, case):
    cluster.jobs += 1
    command = [str(build / "tools" / "gradwire"), "bench", "--json", "--no-verify", "--sizes", f"{case.bytes}",
               "--iterations", str(case.iterations), "--warmup", str(case.warmup)]
    environments = [cluster.environment(i, case.hosts, i, f"job{cluster.jobs}") for i in range(case.hosts)]
    return json.loads(run_all([command] * case.hosts, environments))["results"][0]


def compare(build, case, codecs, rounds):
    """Rows (what, median seconds, least seconds, ratio of the medians to Gloo's, ratio of bytes)."""
    from harness import Cluster
    from netlab import Netlab
    samples = {}
    with Cleanup() as cleanup:
        lab = Netlab(case.hosts, case.rate)
        cleanup.addCleanup(lab.close)
        clusters = {codec: Cluster(cleanup, case.hosts, {"compression.codec": codec}, lab) for codec in codecs}
        for number in range(rounds):
            samples.setdefault("Gloo ring", []).append(run_gloo(build, lab, case))
            for codec, cluster in clusters.items():
                samples.setdefault(f"gradwire {codec}", []).append(run_gradwire(build, cluster, case))
            print(f"{case.hosts} hosts, {case.rate}, {case.size}: round {number + 1} of {rounds}", file=sys.stderr)
    gloo = [sample["median_seconds"] for sample in samples["Gloo ring"]]
    for what, runs in samples.items():
        medians = [run["median_seconds"] for run in runs]
        ratios = [own / other for own, other in zip(medians, gloo)]
        yield (what, statistics.median(medians), min(run["min_seconds"] for run in runs), statistics.median(ratios),
               runs[-1].get("ratio"))


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True,
                            text=True, check=False).stdout.strip()
    return (f"{len(models)} x {models[0] if models else platform.machine()}, Linux {platform.release()}, "
            f"commit {commit or 'unknown'}")


def seconds(value):
    return f"{value * 1e3:.3f} ms" if value < 0.01 else f"{value * 1e3:.1f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", type=Case, action="append", dest="cases")
    parser.add_argument("--codecs", default="none,l8,laco", type=lambda text: text.split(","))
    options = parser.parse_args()
    build = options.build.resolve()
    os.environ["GRADWIRED"] = str(build / "daemon" / "gradwired")
    os.environ["GRADWIRE_COMMAND"] = str(build / "tools" / "gradwire")
    from netlab import missing
    reason = missing()
    if not reason and not (build / "tools" / "gloo_peer").exists():
        reason = f"{build}/tools/gloo_peer is not there; install libgloo-dev and build it"
    if reason:
        sys.exit(f"compare.py: {reason}")

    print(f"{machine()}; medians over {options.rounds} interleaved rounds.\n")
    print("| hosts | link | size | what | median | least | time / Gloo's | bytes / raw |")
    print("|---|---|---|---|---|---|---|---|")
    for case in options.cases or [Case(text) for text in CASES]:
        for what, median, least, ratio, compression in compare(build, case, options.codecs, options.rounds):
            saved = f"1/{compression:.1f}" if compression else "-"
            link = "unshaped" if case.rate == "none" else case.rate
            print(f"| {case.hosts} | {link} | {case.size} | {what} | {seconds(median)} | {seconds(least)} | "
                  f"{ratio:.2f} | {saved} |", flush=True)


if __name__ == "__main__":
    main()
