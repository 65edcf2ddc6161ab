"""Gradwire: averages gradients through the node's daemon.

    with gradwire.Job() as job:                        # who we are comes from the launcher
        bucket = job.bucket("b", [("weight", 1000)])   # the same on every rank
        numpy.frombuffer(bucket.gradient, "f4")[:] = gradient
        bucket.allreduce("average")
        bucket.wait()
        average = numpy.frombuffer(bucket.result, "f4").copy()

`gradwire.torch` has a communication hook for PyTorch's DistributedDataParallel.
"""
from ._job import DTYPES, REDUCE_OPS, Bucket, Job, Progress, Traffic
from ._native import (
    AbortedError,
    BusyError,
    DeniedError,
    ExhaustedError,
    ForkedError,
    GradwireError,
    InvalidError,
    MismatchError,
    NotFoundError,
    OperationTimeout,
    ProtocolError,
    UnavailableError,
    UnsupportedError,
)


def version():
    """The version of libgradwire."""
    from ._native import library

    return library().gw_version().decode()


__all__ = [
    "AbortedError", "Bucket", "BusyError", "DTYPES", "DeniedError", "ExhaustedError", "ForkedError",
    "GradwireError", "InvalidError", "Job", "MismatchError", "NotFoundError", "OperationTimeout",
    "Progress", "ProtocolError", "REDUCE_OPS", "Traffic", "UnavailableError", "UnsupportedError", "version",
]
