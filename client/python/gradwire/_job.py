"""Job and Bucket: gradwire.h's handles as objects."""
import collections
import ctypes
import io
import math
import operator
import os
import threading
import weakref

from . import _native
from ._native import BusyError, InvalidError, check, library

# name -> (number in gradwire.h, bytes, struct format or None where Python has none)
DTYPES = {
    "float32": (0, 4, "f"),
    "float16": (1, 2, None),
    "bfloat16": (2, 2, None),
    "float64": (3, 8, "d"),
    "int32": (4, 4, "i"),
    "int64": (5, 8, "q"),
    "uint8": (6, 1, "B"),
}
REDUCE_OPS = {"sum": 0, "average": 1, "min": 2, "max": 3, "product": 4}
GRADIENT = 1
FRESH = 1
LEAVE_AT_EXIT = 2
NOT_FINITE = 1

Traffic = collections.namedtuple("Traffic", "operations raw_bytes wire_bytes")
Progress = collections.namedtuple("Progress", "epoch lowest highest highest_rank unknown_nodes")


# ctypes cuts numbers to the width of C's type and texts at a NUL without a word: checked here, before it can.
MAX_WORLD = 65536
MAX_ELEMENTS = 1 << 40
MAX_MILLISECONDS = 1 << 40


def _text(value, what):
    if value is None:
        return None
    text = os.fsencode(value)
    if b"\0" in text:
        raise InvalidError(f"{what} {value!r} has a NUL at byte {text.index(0)}: text without control characters is "
                           "allowed")
    return text


def _whole(value, what, lowest, highest):
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not lowest <= number <= highest:
        raise InvalidError(f"{what} is {value!r}; it must be a whole number from {lowest} to {highest}")
    return number


def _milliseconds(seconds, what="the time-out"):
    """Time-outs are seconds here; None: as long as the daemon's own clocks allow; math.inf: for ever."""
    if seconds is None:
        return -1
    if math.isnan(seconds) or MAX_MILLISECONDS / 1000 < seconds < math.inf:
        raise InvalidError(f"{what} is {seconds!r} s; it may be at most {MAX_MILLISECONDS // 1000} s, or math.inf for "
                           "ever")
    return MAX_MILLISECONDS if seconds == math.inf else max(0, int(max(seconds, 0) * 1000 + 0.999))


def _check_callback(status, failures):
    """What went wrong in the callback says more than the call's own failure."""
    if failures:
        raise failures[0]
    check(status)


def _write_all(file, part):
    """A raw file takes as much as it likes at a time; what returns no number has taken everything."""
    while part:
        taken = file.write(part)
        if taken is None and isinstance(file, io.RawIOBase):
            raise BlockingIOError("the file takes nothing more for the moment: save to one that blocks")
        if not isinstance(taken, int):
            return
        if not 0 < taken <= len(part):
            raise InvalidError(f"the file says that it took {taken} of {len(part)} bytes")
        part = part[taken:]


def _choice(table, name, what):
    try:
        return table[str(name)]
    except KeyError:
        raise InvalidError(f"{what} {name!r} does not exist: it is one of {', '.join(table)}") from None


class Bucket:
    """Named layers that are reduced together; made by Job.bucket.

    `gradient` is this rank's memory to write to, `result` (read-only) has what the last finished operation
    gave. Arrays and views over them must not be used after destroy() or the job's leave().
    """

    def __init__(self, job, handle, name, layers, dtype):
        self._job = job
        self._handle = handle
        self.name = name
        self.layers = layers
        self.dtype = dtype
        width = DTYPES[dtype][1]
        self.elements = library().gw_bucket_elements(handle)
        self.bytes = self.elements * width
        self.codec = library().gw_bucket_codec(handle).decode()
        self._map()

    def _map(self):
        form = DTYPES[self.dtype][2]
        self._memory = []
        self.gradient = self._view(library().gw_bucket_gradient(self._handle), form)
        # Typed as writable because torch warns about read-only buffers; a write to it is a SIGSEGV.
        self._raw_result = self._view(library().gw_bucket_result(self._handle), form)
        self.result = self._raw_result.toreadonly()

    def _view(self, address, form):
        memory = (ctypes.c_ubyte * self.bytes).from_address(address)
        self._memory.append(weakref.ref(memory))  # lives as long as any array or view over it
        view = memoryview(memory).cast("B")
        return view if form is None or self.bytes == 0 else view.cast(form)

    def allreduce(self, op="average", scale=1.0):
        """Starts an operation; `scale` is the step's loss scale, equal on all ranks, from 2^-60 to 2^60."""
        self._submit("gw_allreduce_scaled", _choice(REDUCE_OPS, op, "reduce operation"), scale)

    def flush(self, op="average", scale=1.0):
        """Starts an allreduce that sends all layers densely, so that next to nothing stays in the residuals.

        All ranks must flush the same operation: at a drop of the learning rate, a checkpoint, an evaluation.
        """
        self._submit("gw_flush_scaled", _choice(REDUCE_OPS, op, "reduce operation"), scale)

    def broadcast(self, root):
        """Starts an exact copy of the root's gradient memory into everybody's result."""
        self._submit("gw_broadcast", _whole(root, "the root", -(1 << 31), (1 << 31) - 1))

    def allgather(self):
        """Starts an exact copy of every rank's shard of its gradient memory to its place in everybody's result."""
        self._submit("gw_allgather")

    def reduce_scatter(self, op="average"):
        """Starts an exact reduction; this rank's shard of the result has it, what else is there is undefined."""
        self._submit("gw_reduce_scatter", _choice(REDUCE_OPS, op, "reduce operation"))

    def shard(self, rank=None):
        """The slice of the elements that is a rank's shard; this rank's by default."""
        first, count = ctypes.c_uint64(), ctypes.c_uint64()
        rank = self._job.rank if rank is None else _whole(rank, "the rank", -(1 << 31), (1 << 31) - 1)
        check(library().gw_bucket_shard(self._open(), rank, ctypes.byref(first), ctypes.byref(count)))
        return slice(first.value, first.value + count.value)

    def _submit(self, function, *arguments):
        with self._job._submitting:
            check(getattr(library(), function)(self._open(), *arguments))

    def wait(self, timeout=None):
        """Waits for the operation. False if some rank's gradient was not finite (the result is NaN), else True."""
        flags = ctypes.c_uint32()
        with self._job._waiting:
            check(library().gw_wait(self._open(), _milliseconds(timeout), ctypes.byref(flags)))
        return not flags.value & NOT_FINITE

    def test(self):
        """None while the operation runs, else what wait() returns."""
        flags = ctypes.c_uint32()
        done = ctypes.c_int()
        with self._job._waiting:
            check(library().gw_test(self._open(), ctypes.byref(done), ctypes.byref(flags)))
        return None if not done.value else not flags.value & NOT_FINITE

    def destroy(self):
        """Frees the bucket; its operations must have been waited for."""
        if self._handle is None:
            return
        handle = self._open()
        self.gradient = self._raw_result = self.result = None
        if any(reference() is not None for reference in self._memory):
            self._map()
            raise BusyError(f"arrays or views over bucket {self.name}'s memory still exist: delete them first")
        try:
            with self._job._submitting:
                check(library().gw_bucket_destroy(handle))
        except BusyError:
            self._map()
            raise
        except _native.GradwireError:
            self._forget()  # freed whatever else went wrong
            raise
        self._forget()

    def _open(self):
        if self._handle is None:
            raise InvalidError(f"bucket {self.name} has been destroyed")
        return self._handle

    def _forget(self):
        self._handle = self.gradient = self._raw_result = self.result = None  # a touch would be a SIGSEGV
        self._job._buckets.discard(self)


_jobs = weakref.WeakSet()  # joined and not left


def _in_forked_child():
    """The jobs are the parent's. Its threads, which may have held the locks, are not here."""
    for job in _jobs:
        job._submitting, job._waiting = threading.Lock(), threading.Lock()
    _jobs.clear()


os.register_at_fork(after_in_child=_in_forked_child)


class Job:
    """This process as a rank of a job. What is not given comes from the environment (GRADWIRE_*, torchrun,
    Open MPI, Slurm). Usable as a context manager. Threads may share it: submissions wait for submissions and
    waits for waits, never one for the other (barrier and leave take both).

    `timeout` (of the join) and `wait` (for a daemon that is not there yet) are in seconds (math.inf: for
    ever); without `wait` GRADWIRE_WAIT_MS counts. `fresh`: the training starts anew, all daemons of the job drop what
    they kept of it; one rank's is enough.
    A program that ends with the exit code 0 leaves its jobs by itself if no operation is in flight; one that ends
    in another way (an exception, sys.exit(1), a signal) without leave() counts as dead.
    """

    def __init__(self, job=None, *, run_id=None, rank=None, world=None, rendezvous=None, socket=None, timeout=None,
                 wait=None, fresh=False):
        options = _native.JoinOptions(
            struct_size=ctypes.sizeof(_native.JoinOptions),
            job=_text(job, "the job's name"),
            run_id=_text(run_id, "the run id"),
            rank=-1 if rank is None else _whole(rank, "the rank", -1, MAX_WORLD - 1),
            world=-1 if world is None else _whole(world, "the world", -1, MAX_WORLD),
            rendezvous=_text(rendezvous, "the rendezvous"),
            socket=_text(socket, "the socket's path"),
            timeout_ms=0 if timeout is None else max(1, _milliseconds(timeout)),
            wait_ms=0 if wait is None else _milliseconds(wait, "the wait") or -1,  # 0 would be the environment's
            flags=LEAVE_AT_EXIT | (FRESH if fresh else 0),
        )
        self._handle = None
        self._buckets = set()
        self._submitting = threading.Lock()
        self._waiting = threading.Lock()
        handle = ctypes.c_void_p()
        check(library().gw_join(ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value
        self.rank = library().gw_rank(self._handle)
        self.world = library().gw_world(self._handle)
        self.local_ranks = library().gw_local_ranks(self._handle)
        self.epoch = library().gw_epoch(self._handle)
        _jobs.add(self)

    def previous_epoch(self, bucket):
        """How far the job's epoch before this one came on the bucket of this name (gradwire.h has the meaning of
        the fields); None if there was none.
        """
        out = _native.ProgressStruct(struct_size=ctypes.sizeof(_native.ProgressStruct))
        try:
            check(library().gw_previous_epoch(self._open(), _text(bucket, "the bucket's name"), ctypes.byref(out)))
        except _native.NotFoundError:
            return None
        return Progress(out.epoch, out.lowest, out.highest, out.highest_rank, out.unknown_nodes)

    def bucket(self, name, layers, dtype="float32", gradient=True):
        """Creates a bucket on every rank. `layers`: (name, elements) pairs, at most 300,000 of them; `gradient`:
        may be compressed."""
        number, _, _ = _choice(DTYPES, dtype, "dtype")
        layers = list(layers)
        table = (_native.Layer * len(layers))(*[
            _native.Layer(_text(n, "the layer's name"), _whole(count, f"the size of layer {n!r}", 0, MAX_ELEMENTS))
            for n, count in layers])
        handle = ctypes.c_void_p()
        with self._submitting:
            check(library().gw_bucket_create(self._open(), _text(name, "the bucket's name"), number, table, len(layers),
                                             GRADIENT if gradient else 0, ctypes.byref(handle)))
        bucket = Bucket(self, handle.value, name, layers, str(dtype))
        self._buckets.add(bucket)
        return bucket

    def barrier(self, timeout=None):
        """Returns when every rank has called it."""
        with self._submitting, self._waiting:
            check(library().gw_barrier(self._open(), _milliseconds(timeout)))

    def traffic(self):
        """What this job moved over this node's network so far."""
        out = _native.TrafficStruct(struct_size=ctypes.sizeof(_native.TrafficStruct))
        with self._submitting:
            check(library().gw_job_traffic(self._open(), ctypes.byref(out)))
        return Traffic(out.operations, out.raw_bytes, out.wire_bytes)

    def save_state(self, file=None):
        """The compression state of this node (residuals, sparsity controllers, warm start), to keep with a checkpoint:
        bytes, or written to a binary file. One state a node: let the lowest local rank save and load it; others get
        the same. Operations that this rank has started must have been waited for.

        Waits for a thread that submits. BusyError names an operation that has not been waited for; UnavailableError:
        the daemon is gone, or an operation ran meanwhile; ExhaustedError: the user's quota has no room for a copy of
        one bucket's residuals; AbortedError: the job is over. What the file raises arrives. After a failure what the
        file has is of no use."""
        parts = []
        failures = []

        @_native.StateWrite
        def take(_, data, size):
            try:
                part = ctypes.string_at(data, size)
                if file is None:
                    parts.append(part)
                else:
                    _write_all(file, part)
                return 0
            except BaseException as failure:
                failures.append(failure)
                return 1

        with self._submitting:
            _check_callback(library().gw_state_save(self._open(), take, None), failures)
        return b"".join(parts) if file is None else None

    def load_state(self, state):
        """Takes a state that save_state gave, as bytes or a binary file at its beginning, which is read to its end.
        Before buckets are created (with the hook: before the first step). It may come from a job of another number
        of nodes: one state a node, whichever; nodes without one start with empty residuals.

        Waits for a thread that submits. InvalidError: a bucket that could take it up is there, or it is damaged;
        ExhaustedError: it does not fit the user's quota; UnsupportedError: a version that this daemon does not read;
        UnavailableError, AbortedError: the daemon or the job is gone. What the file raises arrives. After a failure
        nothing has been loaded."""
        read = io.BytesIO(state).read if isinstance(state, (bytes, bytearray, memoryview)) else state.read
        failures = []

        @_native.StateRead
        def give(_, data, size):
            try:
                part = read(size)
                if part is None:
                    raise BlockingIOError("the file has nothing for the moment: load from one that blocks")
                if len(part) > size:
                    raise InvalidError(f"the file gave {len(part)} bytes where at most {size} were asked for")
                ctypes.memmove(data, bytes(part), len(part))
                return len(part)
            except BaseException as failure:
                failures.append(failure)
                return -1

        with self._submitting:
            _check_callback(library().gw_state_load(self._open(), give, None), failures)

    def leave(self):
        """Ends the membership; the buckets' memory is gone after it."""
        if self._handle is None:
            return
        with self._submitting, self._waiting:
            handle, self._handle = self._handle, None
            _jobs.discard(self)
            for bucket in list(self._buckets):
                bucket._forget()
            check(library().gw_leave(handle))

    def _open(self):
        if self._handle is None:
            raise InvalidError("the job has been left")
        return self._handle

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            self.leave()
        except _native.GradwireError:
            if kind is None:
                raise
