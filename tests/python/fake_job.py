"""A gradwire.Job that averages over a gloo group instead of a daemon, for tests of the hook alone."""
import threading

import numpy
import torch
import torch.distributed as dist

_NUMPY = {"float32": "f4", "float64": "f8", "float16": "f2"}
_TORCH = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}


class FakeBucket:
    def __init__(self, job, name, layers, dtype, gradient):
        self._job = job
        self.name, self.layers, self.dtype, self.may_compress = name, layers, dtype, gradient
        self.elements = sum(count for _, count in layers)
        self._gradient = numpy.zeros(self.elements, _NUMPY[dtype])
        self._result = numpy.zeros(self.elements, _NUMPY[dtype])
        self.gradient = memoryview(self._gradient)
        self._raw_result = memoryview(self._result)
        self.result = self._raw_result.toreadonly()
        self.scales = []
        self.flushes = 0
        self.in_flight = None
        self.destroyed = False

    def allreduce(self, op="average", scale=1.0):
        assert op == "average" and self.in_flight is None and not self.destroyed
        self.scales.append(scale)
        sent = torch.frombuffer(self.gradient, dtype=_TORCH[self.dtype]).clone()
        self.in_flight = (sent, dist.all_reduce(sent, group=self._job.group, async_op=True))

    def flush(self, op="average", scale=1.0):
        self.flushes += 1
        self.allreduce(op, scale)

    def wait(self, timeout=None):
        assert threading.current_thread().name == "gradwire-completions"
        sent, work = self.in_flight
        work.wait()
        self.in_flight = None
        if self._job.failure is not None:
            raise self._job.failure
        finite = bool(torch.isfinite(sent).all())
        self._result[:] = sent.numpy() / self._job.world if finite else numpy.nan
        return finite

    def destroy(self):
        assert self.in_flight is None and not self.destroyed
        self.destroyed = True


class FakeJob:
    def __init__(self, group):
        self.group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.buckets = []
        self.failure = None  # raised by every wait

    def bucket(self, name, layers, dtype="float32", gradient=True):
        everybodys = [None] * self.world
        dist.all_gather_object(everybodys, (name, layers, dtype, gradient), group=self.group)
        assert all(one == everybodys[0] for one in everybodys), everybodys
        self.buckets.append(FakeBucket(self, name, layers, dtype, gradient))
        return self.buckets[-1]

    def alive(self):
        return [bucket for bucket in self.buckets if not bucket.destroyed]
