"""One training run: a task, a ring, stochastic gradient descent with momentum, and what came of it."""
import math
import time

import torch

import ring_lab
import tasks


def train(spec, library, progress=lambda epoch, metric: None):
    """spec: task, nodes, algorithm, batch, seed, epochs, lr, momentum, settings, rules, and max_steps, where an epoch is
    cut short.

    The learning rate falls to 0 on a cosine. Steps whose average is not finite are left out, as an AMP scaler does.
    """
    torch.set_num_threads(1)
    started = time.monotonic()
    task = tasks.MAKE[spec["task"]](spec["nodes"], spec["seed"], spec["batch"])
    rules = spec.get("rules", ())
    ring = ring_lab.Ring(spec["nodes"], task.layers, spec["settings"], rules, library, spec["algorithm"])
    steps = min(task.steps, spec.get("max_steps") or task.steps)
    gradients = torch.zeros(spec["nodes"], len(task.weights))
    average = torch.zeros(len(task.weights))
    velocity = torch.zeros(len(task.weights))
    curve, left_out = [], 0
    for epoch in range(spec["epochs"]):
        task.start_epoch()
        for step in range(steps):
            done = (epoch * steps + step) / (spec["epochs"] * steps)
            task.gradients(gradients)
            if not ring.allreduce(gradients, average):
                left_out += 1
                continue
            velocity.mul_(spec["momentum"]).add_(average)
            task.weights.sub_(velocity, alpha=spec["lr"] * 0.5 * (1 + math.cos(math.pi * done)))
        curve.append(task.evaluate())
        progress(epoch + 1, curve[-1])
    counts = ring.counts()
    ring.close()
    return {
        "metric": curve[-1],
        "curve": [round(value, 3) for value in curve],
        "ratio": counts.raw_bytes / max(1, counts.wire_bytes),
        "ratio_sent": counts.raw_bytes / max(1, counts.wire_bytes + counts.header_bytes),
        "wire_bytes": counts.wire_bytes,
        "header_bytes": counts.header_bytes,
        "density": counts.density,
        "residual_norm": counts.residual_norm,
        "steps": counts.operations,
        "left_out": left_out,
        "elements": len(task.weights),
        "seconds": round(time.monotonic() - started, 1),
    }
