#!/usr/bin/python3
"""What dense codecs do to a sum, as the tables of docs/benchmarks.md: error by nodes and algorithm, and by a layer's scale.

    errors.py [--elements N] [--seeds N]

Gaussian gradients of one step through rings in one process (ring_lab.py); the error is rms(result - sum) / rms(sum),
the median over the seeds.
"""
import argparse

import numpy

from ring_lab import ALGORITHMS, Ring

CODECS = (
    ("fp16", {"codec": "fp16"}),
    ("bf16", {"codec": "bf16"}),
    ("l8", {"codec": "l8"}),
    ("l8, 16 steps", {"codec": "l8", "steps_per_octave": "16"}),
    ("l8, stochastic", {"codec": "l8", "rounding": "stochastic", "error_feedback": "off"}),
    ("int8", {"codec": "int8"}),
    ("int4", {"codec": "int4"}),
    ("int4, stochastic", {"codec": "int4", "rounding": "stochastic", "error_feedback": "off"}),
)
NODES = (2, 4, 8, 16, 32, 64)
SCALES = (1.0, 0.1, 0.01, 0.001)


def step(nodes, algorithm, layers, settings, scales, seed):
    """One step's sum as it is delivered, and as it should be, both float64."""
    random = numpy.random.default_rng(seed)
    factors = numpy.repeat(numpy.float32(scales), [elements for _, elements in layers])
    gradients = random.standard_normal((nodes, factors.size), dtype=numpy.float32) * factors
    average = numpy.empty(factors.size, numpy.float32)
    ring = Ring(nodes, layers, settings, algorithm=algorithm)
    try:
        if not ring.allreduce(gradients, average):
            raise RuntimeError("the ring found the gradients not finite")
    finally:
        ring.close()
    return average.astype(numpy.float64) * nodes, gradients.astype(numpy.float64).sum(axis=0)


def error(delivered, exact):
    return numpy.sqrt(numpy.mean((delivered - exact) ** 2) / numpy.mean(exact**2))


def percent(value):
    return f"{100 * value:.2g} %"


def row(cells):
    print("| " + " | ".join(cells) + " |")


def by_nodes(elements, seeds):
    row(["codec", "algorithm"] + [f"P = {nodes}" for nodes in NODES])
    row(["---"] * (len(NODES) + 2))
    layers = [("weight", elements)]
    for name, settings in CODECS:
        for algorithm in ALGORITHMS:
            cells = [name, algorithm]
            for nodes in NODES:
                errors = [error(*step(nodes, algorithm, layers, settings, (1.0,), seed)) for seed in range(seeds)]
                cells.append(percent(numpy.median(errors)))
            row(cells)


def by_scale(elements, seeds):
    row(["codec"] + [f"layer times {scale:g}" for scale in SCALES])
    row(["---"] * (len(SCALES) + 1))
    layers = [(f"layer{i}", elements) for i in range(len(SCALES))]
    for name, settings in CODECS:
        errors = numpy.empty((seeds, len(SCALES)))
        for seed in range(seeds):
            delivered, exact = step(4, "ring", layers, settings, SCALES, seed)
            for i in range(len(SCALES)):
                part = slice(i * elements, (i + 1) * elements)
                errors[seed, i] = error(delivered[part], exact[part])
        row([name] + [percent(value) for value in numpy.median(errors, axis=0)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=40960, help="of a layer (default 40960)")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("Error of one step by the number of nodes:\n")
    by_nodes(arguments.elements, arguments.seeds)
    print("\nFour layers of one bucket, four nodes in a ring:\n")
    by_scale(arguments.elements, arguments.seeds)


if __name__ == "__main__":
    main()
