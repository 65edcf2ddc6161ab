#!/usr/bin/python3
"""Trains Fashion-MNIST with DistributedDataParallel, gradients averaged by Gradwire or by Gloo.

    gradwire run -n 2 -l 2 --codec laco -- python3 fashion_mnist.py --epochs 4 --model cnn
    torchrun --nproc-per-node 4 fashion_mnist.py --backend gloo

DDP needs a process group of its own in any case (Gloo, for construction and the final figures). Prints a line
with `accuracy NN.NN` per epoch, and with Gradwire what rank 0's node has sent. The same seed, world size and
codec give the same numbers.
"""
import argparse
import gzip
import os
import socket
import struct
import tempfile
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DATA = "/usr/share/datasets/fashion-mnist"
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MEAN, DEVIATION = 0.2860, 0.3530


def read_idx(path):
    """An IDX file of unsigned bytes, raw or as PATH.gz: 00 00 08 dimensions, big-endian sizes, data."""
    if os.path.exists(path):
        with open(path, "rb") as file:
            data = file.read()
    else:
        with gzip.open(path + ".gz") as file:
            data = file.read()
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    dimensions = data[3]
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise ValueError(f"{path} ends within its header")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != numpy.prod(shape, dtype=numpy.int64):
        raise ValueError(f"{path} has {len(data) - start} bytes of data where its header says {shape}")
    return numpy.frombuffer(data, numpy.uint8, offset=start).reshape(shape)


def load(directory, part, limit):
    images, labels = (read_idx(os.path.join(directory, name)) for name in FILES[part])
    if len(images) != len(labels):
        raise ValueError(f"{directory}: {len(images)} {part} images but {len(labels)} labels")
    images, labels = images[:limit], labels[:limit]
    pixels = torch.from_numpy(images.astype(numpy.float32)).unsqueeze(1)
    return (pixels / 255 - MEAN) / DEVIATION, torch.from_numpy(labels.astype(numpy.int64))


def make_model(name):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def first_set(*names, default=None):
    return next((os.environ[name] for name in names if os.environ.get(name)), default)


def init_process_group(rank, world, job):
    """Gloo at MASTER_ADDR:MASTER_PORT; without those, at a port that rank 0 finds and broadcasts by Gradwire."""
    if world == 1:
        with tempfile.TemporaryDirectory() as directory:
            dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
        return
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host is None or port is None:
        if job is None:
            raise SystemExit("set MASTER_ADDR and MASTER_PORT, or start with torchrun")
        host = host or first_set("GRADWIRE_RENDEZVOUS", default="127.0.0.1").rpartition(":")[0] or "127.0.0.1"
        place = job.bucket("process-group", [("port", 1)], dtype="int32", gradient=False)
        if rank == 0:
            with socket.socket() as probe:
                probe.bind(("", 0))
                place.gradient[0] = probe.getsockname()[1]
        place.broadcast(0)
        place.wait()
        port = place.result[0]
        place.destroy()
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world)


def evaluate(model, images, labels, rank, world):
    """Per cent right, each rank on its share."""
    model.eval()
    right = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        for start in range(rank * 500, len(images), world * 500):
            guess = model(images[start : start + 500]).argmax(1)
            right += (guess == labels[start : start + 500]).sum()
    dist.all_reduce(right)
    model.train()
    return 100.0 * right.item() / len(images)


def train(options, rank, world, job):
    images, labels = load(options.data, "train", options.limit)
    test_images, test_labels = load(options.data, "test", options.limit)
    torch.manual_seed(options.seed)
    net = make_model(options.model)
    model = DistributedDataParallel(net)
    state = None
    if job is not None:
        import gradwire.torch

        state = gradwire.torch.register(model, job)

    share = options.batch // world
    steps = len(images) // (share * world)
    if share == 0 or steps == 0:
        raise SystemExit(f"{len(images)} images are not enough for one batch of {options.batch} on {world} ranks")
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * steps)
    before = job.traffic() if job is not None else None
    for epoch in range(1, options.epochs + 1):
        started = time.monotonic()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1000 * options.seed + epoch))
        total = torch.zeros(1)
        for step in range(steps):
            first = (step * world + rank) * share
            chosen = order[first : first + share]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        dist.all_reduce(total)
        accuracy = evaluate(net, test_images, test_labels, rank, world)
        seconds = time.monotonic() - started
        line = f"epoch {epoch} accuracy {accuracy:.2f} loss {total.item() / (steps * world):.4f} seconds {seconds:.1f}"
        if job is not None:
            after = job.traffic()
            line += traffic_figures(before, after)
            before = after
        if rank == 0:
            print(line, flush=True)
    if job is not None:
        if rank == 0:
            print(f"total{traffic_figures(None, job.traffic())} (sent by rank 0's node)", flush=True)
        state.close()


def traffic_figures(before, after):
    wire = after.wire_bytes - (before.wire_bytes if before else 0)
    raw = after.raw_bytes - (before.raw_bytes if before else 0)
    ratio = f"{raw / wire:.1f}" if wire > 0 else "none"
    return f" wire_bytes {wire} raw_bytes {raw} ratio {ratio}"


def main():
    parser = argparse.ArgumentParser(description="Fashion-MNIST by data-parallel training")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="cnn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=("gradwire", "gloo"), default="gradwire")
    parser.add_argument("--batch", type=int, default=256, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05, help="falls to 0 on a cosine")
    parser.add_argument("--data", default=DATA, help="directory with the IDX files, raw or .gz")
    parser.add_argument("--limit", type=int, default=None, help="use the first N images only")
    options = parser.parse_args()

    torch.set_num_threads(1)
    job = None
    if options.backend == "gradwire":
        import gradwire

        job = gradwire.Job()
        rank, world = job.rank, job.world
    else:
        rank = int(first_set("GRADWIRE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", default="0"))
        world = int(first_set("GRADWIRE_WORLD", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", default="1"))
    init_process_group(rank, world, job)
    train(options, rank, world, job)
    dist.barrier()
    dist.destroy_process_group()
    if job is not None:
        job.leave()


if __name__ == "__main__":
    main()
