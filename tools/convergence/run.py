#!/usr/bin/python3
"""Trains with every codec on rings in one process, and says whether training suffers.

    run.py [--budget 60]                  what is missing of the suite, then the verdicts; again to go on
    run.py --short [--tasks mlp cnn]      CI's form: coarse bounds, keeps nothing, exit code 1 where one is missed
    run.py --report                       the tables of what is there, as in docs/benchmarks.md; trains nothing
    run.py --try mlp codec=laco density=0.01 warm_start_steps=10    one experiment, three seeds

The suite takes an hour and a quarter on two idle cores. Needs the library gradwire_ring_lab (tools/dev/build.sh release
gradwire_ring_lab), python3-torch, dataset-fashion-mnist and, for the text, bible-kjv. Much slower without
libopenblas0-serial. Every result but --short's is kept at once in build/convergence/results.jsonl, with a hash of the
settings, the code that trains, torch's version and what the library makes of some gradients with these settings: what
has changed is trained again.

--try's epochs, lr, momentum, batch, nodes and algorithm are the task's (batch: of all workers together); everything else
is the codec's, and so is whatever begins with `compression.`: momentum=0 compression.momentum=0.9.

Exit codes: 0 done; 1 something failed, --short: or suffers; 77 --short without the library or what it trains on; 130
stopped.
"""
import argparse
import contextlib
import json
import math
import os
import signal
import sys
import time
import zlib

try:
    import ring_lab
except ImportError as missing:
    sys.exit(f"run.py: {missing}; install python3-numpy")
import experiments
import report
import store
import suite

ALL = tuple(experiments.BASES)
NOT_THERE = 77  # CTest's SKIP_RETURN_CODE
SHORT = "convergence.short"  # its name in CTest
MOST = 10000


class Missing(RuntimeError):
    """It is not installed."""


def read_data(task):
    """Reads what `task` is trained on, to see that it is there and whole."""
    try:
        import corpus
        import tasks

        if task == "lm":
            corpus.read_verses()
        else:
            for part in ("train", "test"):
                tasks.fashion_mnist.load(tasks.fashion_mnist.DATA, part, 1)
    except ImportError as error:
        raise Missing(f"{error}; install python3-torch") from None
    except FileNotFoundError as error:
        raise Missing(f"{error.filename} is not there; install dataset-fashion-mnist") from None
    except corpus.NoCorpus as error:
        raise Missing(str(error)) from None


def sort_by_data(tasks, suite_name):
    """Those whose data are here; how many are not installed; how many are damaged. Says why."""
    found, missing, damaged = [], 0, 0
    for task in tasks:
        try:
            read_data(task)
            found.append(task)
        except Missing as error:
            missing += 1
            print(f"skipped: {suite_name} ({task}): {error}", flush=True)
        except (OSError, EOFError, ValueError, RuntimeError, zlib.error) as error:
            damaged += 1
            print(f"failed: {task}: its data are damaged: {error}", flush=True)
    return found, missing, damaged


def warn_of_slow_products():
    import torch

    torch.set_num_threads(1)
    matrix = torch.ones(256, 256)
    matrix @ matrix
    started = time.monotonic()
    for _ in range(5):
        matrix @ matrix
    if time.monotonic() - started > 0.03:
        print("torch multiplies matrices slowly here: libopenblas0-serial is several times faster", flush=True)


def settings_of(words):
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise SystemExit(f"run.py: {word} is not NAME=VALUE")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def check(base):
    """Of a task's own settings; SystemExit says what is wrong."""
    for name in ("nodes", "batch", "epochs"):
        if type(base[name]) is not int or not 1 <= base[name] <= MOST:
            raise SystemExit(f"run.py: {name}={base[name]}; use a whole number from 1 to {MOST}")
    for name in ("lr", "momentum"):
        if type(base[name]) not in (int, float) or not math.isfinite(base[name]):
            raise SystemExit(f"run.py: {name}={base[name]} is not a number")
    if base["algorithm"] not in ring_lab.ALGORITHMS:
        raise SystemExit(f"run.py: algorithm={base['algorithm']}; use one of {', '.join(ring_lab.ALGORITHMS)}")
    if base["batch"] % base["nodes"]:
        raise SystemExit(f"run.py: batch={base['batch']} is not a multiple of nodes={base['nodes']}")


def experiment(words):
    task, settings = words[0], settings_of(words[1:])
    if task not in experiments.BASES:
        raise SystemExit(f"run.py: task {task} does not exist; use one of {', '.join(ALL)}")
    own = experiments.BASES[task].keys() - {"task"}
    changes = {name: settings.pop(name) for name in own if name in settings}
    check({**experiments.BASES[task], **changes})
    codec = {name.removeprefix("compression.").replace("-", "_"): value for name, value in settings.items()}
    label = " ".join(words[1:])
    return [experiments.run(task, label, seed, codec, **changes) for seed in experiments.SEEDS]


def seed(word):
    value = int(word)
    if not 0 <= value < 2**32:
        raise ValueError
    return value


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=60, help="minutes: begins no run that would take longer (60)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trainings at a time")
    parser.add_argument("--tasks", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--seeds", type=seed, nargs="+", default=experiments.SEEDS)
    parser.add_argument("--only", default="", help="only runs whose label contains this")
    place = os.path.normpath(os.path.join(ring_lab.ROOT, "build", "convergence", "results.jsonl"))
    parser.add_argument("--results", default=place, help="default: %(default)s")
    parser.add_argument("--short", action="store_true", help="two minutes, keeps nothing; exit code 1 if training suffers much")
    parser.add_argument("--report", action="store_true", help="print the tables of what is there, train nothing")
    parser.add_argument("--try", dest="experiment", nargs="+", metavar=("TASK", "NAME=VALUE"), help="an experiment")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


@contextlib.contextmanager
def handled_by(handler):
    """SIGINT and SIGTERM."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def train(options, results, library, make_plan):
    """Exit code."""
    found, missing, damaged = sort_by_data(options.tasks, SHORT if options.short else "convergence")
    if not found:
        return 1 if damaged or not options.short else NOT_THERE
    warn_of_slow_products()
    deadline = time.monotonic() + 60 * options.budget
    trainer = suite.Suite(results, library, max(1, options.jobs), deadline)
    with handled_by(trainer.interrupt):
        complete = trainer.do(lambda: make_plan(found))
    if trainer.interrupted:
        print("stopped; start again to go on", flush=True)
        return 130
    failed = bool(damaged or trainer.failures or trainer.refused())
    if options.short:
        missed = report.short_verdicts(make_plan(found), results)
        if failed or missed or not complete:
            return 1
        return NOT_THERE if missing else 0
    if text := report.tables(make_plan(found), results):
        print(text)
    return 1 if failed else 0


def main():
    options = parse()
    if options.one:
        suite.one(json.loads(options.one[0]), options.one[1])
        return 0
    try:
        library = ring_lab.find_library()
    except ring_lab.NoLibrary as error:
        if not options.short:
            raise
        print(f"skipped: {SHORT}: {error}")
        return NOT_THERE
    results = store.Results(None if options.short else options.results, library)
    seeds = tuple(dict.fromkeys(options.seeds))
    if options.experiment:
        tried = experiment(options.experiment)
        options.tasks = [options.experiment[0]]

    def make_plan(tasks):
        if options.short:
            return experiments.short_plan(tasks)
        if options.experiment:
            return tried
        return [r for r in experiments.plan(tasks, seeds, results.metric) if options.only in r["label"]]

    if options.report:
        text = report.tables(make_plan(options.tasks), results)
        print(text or f"nothing of this is in {options.results} (--short keeps nothing there)")
        return 0
    results.check_writable()
    return train(options, results, library, make_plan)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ring_lab.LabError, ring_lab.NoLibrary, store.NoStore) as error:
        sys.exit(f"run.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
