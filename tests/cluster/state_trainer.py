"""A rank of a small training whose every step depends on all steps before: prints a hash of its parameters each step.

    state_trainer.py FOLDER FIRST LAST [save] [load] [layers]

FOLDER keeps the checkpoint of step FIRST (load) or LAST (save): parameters a rank, compression state a node.
"""
import array
import hashlib
import os
import pathlib
import random
import sys

import gradwire

LAYERS = [("first", 30000), ("bias", 300), ("last", 12000)]


def gradient(parameters, rank, step):
    """Follows the parameters, with noise that is the rank's and the step's own."""
    noise = random.Random(1000 * step + rank)
    shift = [noise.uniform(-1, 1) for _ in range(1009)]
    return array.array("f", (0.1 * p + shift[i % 1009] * (1 + i % 7) for i, p in enumerate(parameters)))


def main(folder, first, last, *todo):
    folder = pathlib.Path(folder)
    elements = sum(count for _, count in LAYERS)
    parameters = array.array("f", bytes(4 * elements))
    with gradwire.Job() as job:
        node = os.environ["GROUP_RANK"]
        lowest_here = os.environ["LOCAL_RANK"] == "0"
        if "load" in todo:
            parameters = array.array("f", (folder / "parameters").read_bytes())
            state = folder / f"state.{node}"
            if lowest_here and state.exists():
                with open(state, "rb") as file:
                    job.load_state(file)
        bucket = job.bucket("everything", LAYERS)
        for step in range(first, last):
            bucket.gradient[:] = gradient(parameters, job.rank, step)
            bucket.allreduce("average", scale=2.0 if step % 5 == 4 else 1.0)
            bucket.wait()
            parameters = array.array("f", (p - 0.05 * r for p, r in zip(parameters, bucket.result)))
            print(f"step {step} {hashlib.sha256(parameters).hexdigest()}", flush=True)
        if "save" in todo:
            state = job.save_state()
            print(f"state {node} {hashlib.sha256(state).hexdigest()}", flush=True)
            if lowest_here:
                (folder / f"state.{node}").write_bytes(state)
            if job.rank == 0:
                (folder / "parameters").write_bytes(parameters)
        if "late" in todo:
            try:
                job.load_state(state)
            except gradwire.InvalidError as error:
                print(f"late {error}", flush=True)
        job.barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
