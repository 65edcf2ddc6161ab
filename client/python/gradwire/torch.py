"""Gradwire as a communication hook of torch's DistributedDataParallel.

    job = gradwire.Job()
    model = DistributedDataParallel(net)
    state = gradwire.torch.register(model, job)
    ... train ...
    state.close()

The backward pass's thread copies a bucket into shared memory and submits it; one completion thread sleeps in
the library until the average is there, writes it back and completes DDP's future. Submitting and waiting are
independent sides of a job, so neither holds up the other and nothing polls.
"""
import queue
import threading

import torch
import torch.distributed as dist

from ._native import BusyError, InvalidError

_TENSORS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
_DTYPES = {dtype: name for name, dtype in _TENSORS.items() if dtype.is_floating_point}


def tensors(bucket):
    """Flat tensors over a gradwire.Bucket's memory: (gradient, result). A write to the result is a SIGSEGV.
    Delete them before the bucket is destroyed.
    """
    dtype = _TENSORS[bucket.dtype]
    return tuple(
        torch.frombuffer(memory, dtype=dtype, count=bucket.elements)
        for memory in (bucket.gradient, bucket._raw_result)
    )


def _future_of(outcome, value):
    """The future that DDP waits for: value() once `outcome` (a future of a failure or None) is there.

    An exception in a hook or a future reaches the caller of backward() as a RuntimeError; one that is raised in
    a callback of the autograd engine keeps its type. Ours runs before DDP's own, which then never sees the
    failed future.
    """

    def finish(ended):
        failure = ended.value()
        if failure is not None:
            raise failure
        return value()

    def raise_failure():
        failure = outcome.wait()
        if failure is not None:
            raise failure

    finished = outcome.then(finish)
    torch.autograd.Variable._execution_engine.queue_callback(raise_failure)
    return finished


class _Slot:
    """A Gradwire bucket and tensors over its memory."""

    def __init__(self, bucket):
        self.bucket = bucket
        self.gradient, self.result = tensors(bucket)

    def free(self):
        self.gradient = self.result = None
        self.bucket.destroy()


class DDPState:
    """What the hook keeps between steps: the Gradwire buckets and the completion thread.

    job: a gradwire.Job. model: the module whose parameter names become layer names (a DDP wrapper is looked
    through). view: return the read-only result memory instead of writing the average back into DDP's buffer;
    saves a copy, but a hook chained behind, or gradient clipping before the copy, must not write to it.
    exact: never compress. scale: a callable that gives the step's loss scale, equal on all ranks (for example
    GradScaler.get_scale), so that residuals follow its changes; from 2^-60 to 2^60. prefix: of the buckets'
    names; models that share a job need different ones.

    A gradient that is not finite on some rank arrives as NaN on all, where a GradScaler sees it and skips.

    Set `flush` to True, on all ranks alike, before the backward pass of the last step before a drop of the learning
    rate, a checkpoint or an evaluation: that step sends densely what the residuals hold back. Then to False again.
    """

    def __init__(self, job, model, *, view=False, exact=False, scale=None, prefix="ddp"):
        self.job = job
        self.view = view
        self.exact = exact
        self.scale = scale
        self.prefix = prefix
        self.flush = False
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._slots = {}  # names of the layers -> _Slot
        self._first = []  # of the first iteration
        self._in_first_iteration = True
        self._created = 0
        self._queue = queue.SimpleQueue()
        self._thread = None

    def close(self):
        """Ends the completion thread and frees the buckets. The job stays joined."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        slots, self._slots, self._first = [*self._first, *self._slots.values()], {}, []
        for slot in slots:
            try:
                slot.free()
            except BusyError:  # DDP holds the last result of view=True; the job's leave frees it
                pass

    def reduce(self, bucket):
        """Starts the average of a DDP bucket; returns the future of its result, or of the failure."""
        buffer = bucket.buffer()
        outcome = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        value = lambda: buffer
        try:
            if self.job.world == 1:
                outcome.set_result(None)
            else:
                value = self._submit(bucket, buffer, outcome)
        except Exception as error:
            outcome.set_result(error)
        return _future_of(outcome, value)

    def _submit(self, bucket, buffer, outcome):
        first = self._in_first_iteration
        slot = self._first_slot(bucket, buffer) if first else self._slot(bucket, buffer)
        if bucket.is_last():
            self._in_first_iteration = False
        slot.gradient.copy_(buffer)
        start = slot.bucket.flush if self.flush else slot.bucket.allreduce
        start("average", 1.0 if self.scale is None else float(self.scale()))
        self._start()
        self._queue.put((slot.bucket, outcome))
        if self.view and not first and not buffer.is_cuda:
            return lambda: slot.result
        return lambda: buffer.copy_(slot.result)

    def _layers(self, bucket, buffer):
        if buffer.layout != torch.strided or buffer.dtype not in _DTYPES:
            raise InvalidError(
                f"gradients of layout {buffer.layout} and dtype {buffer.dtype} cannot be averaged by Gradwire: "
                "use dense floating-point parameters"
            )
        layers = []
        for parameter in bucket.parameters():
            name = self._names.get(parameter)
            if name is None:
                raise InvalidError(
                    f"DDP's bucket {bucket.index()} holds a parameter of shape {tuple(parameter.shape)} that the "
                    "model given to DDPState does not have"
                )
            layers.append((name, parameter.numel()))
        if sum(count for _, count in layers) != buffer.numel():
            raise InvalidError(f"DDP's bucket {bucket.index()} has gaps between its parameters")
        return layers

    def _create(self, kind, layers, buffer, gradient):
        self._created += 1
        name = f"{self.prefix}.{kind}{self._created}"
        bucket = self.job.bucket(name, layers, dtype=_DTYPES[buffer.dtype], gradient=gradient)
        return _Slot(bucket)

    def _first_slot(self, bucket, buffer):
        """DDP lays its buckets out anew after the first iteration: what exists before is exact and temporary."""
        slot = self._create("first", self._layers(bucket, buffer), buffer, False)
        self._first.append(slot)
        return slot

    def _slot(self, bucket, buffer):
        while self._first:
            self._first.pop().free()
        layers = self._layers(bucket, buffer)
        key = (buffer.dtype, *(name for name, _ in layers))
        if key not in self._slots:
            gradient = not self.exact and buffer.dtype == torch.float32
            self._slots[key] = self._create("bucket", layers, buffer, gradient)
        return self._slots[key]

    def _start(self):
        if self._thread is None:
            self._thread = threading.Thread(target=self._complete, name="gradwire-completions", daemon=True)
            self._thread.start()

    def _complete(self):
        """Oldest first; the library keeps what ends meanwhile."""
        while True:
            item = self._queue.get()
            if item is None:
                return
            bucket, future = item
            try:
                bucket.wait()
                failure = None
            except BaseException as error:  # whatever it is, DDP's thread must hear of it
                failure = error
            future.set_result(failure)
            # Nothing of the last step is kept alive while this thread sleeps.
            del item, bucket, future, failure


def ddp_hook(state: DDPState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook(DDPState(...), ddp_hook)."""
    return state.reduce(bucket)


def register(model, job, **options):
    """Registers the hook on a DistributedDataParallel model; returns its DDPState."""
    state = DDPState(job, model, **options)
    model.register_comm_hook(state, ddp_hook)
    return state
