"""libgradwire over ctypes: finding it, its signatures, its errors."""
import ctypes
import ctypes.util
import glob
import os

SONAME = "libgradwire.so.0"


class GradwireError(Exception):
    """A call failed; str() is one sentence that names the cause, `status` the number of gradwire.h."""

    status = 13


_ERRORS = {}


def _kind(name, status, meaning, *also):
    """The error of a status of gradwire.h; `also`: what else it can be caught as."""
    kind = type(name, (GradwireError, *also), {"__doc__": meaning, "__module__": __name__, "status": status})
    _ERRORS[status] = kind
    return kind


InvalidError = _kind("InvalidError", 1, "An argument is wrong; nothing was done.", ValueError)
NotFoundError = _kind("NotFoundError", 2, "There is no such bucket, layer or rank.", LookupError)
MismatchError = _kind("MismatchError", 3, "Ranks disagree on what must be equal.")
ExhaustedError = _kind("ExhaustedError", 4, "Memory, descriptors or a quota ran out.")
UnavailableError = _kind("UnavailableError", 5, "The daemon is not there, or went away.", ConnectionError)
OperationTimeout = _kind("OperationTimeout", 6, "A clock ran out; the operation goes on unless the job was aborted.",
                         TimeoutError)
AbortedError = _kind("AbortedError", 7, "The job's epoch ended: a rank, a daemon or the network failed.")
DeniedError = _kind("DeniedError", 8, "The daemon refused this user.", PermissionError)
UnsupportedError = _kind("UnsupportedError", 9, "Valid, but not offered by this version.")
BusyError = _kind("BusyError", 10, "An operation is in flight, the ring is full, or another thread is at work.")
ForkedError = _kind("ForkedError", 11, "The handle belongs to the parent process.")
ProtocolError = _kind("ProtocolError", 12, "Daemon and library do not understand each other.")


class JoinOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("job", ctypes.c_char_p),
        ("run_id", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("rendezvous", ctypes.c_char_p),
        ("socket", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int64),
        ("wait_ms", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
    ]


class Layer(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("elements", ctypes.c_uint64)]


class TrafficStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("operations", ctypes.c_uint64),
        ("raw_bytes", ctypes.c_uint64),
        ("wire_bytes", ctypes.c_uint64),
    ]


class ProgressStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("epoch", ctypes.c_uint64),
        ("lowest", ctypes.c_uint64),
        ("highest", ctypes.c_uint64),
        ("highest_rank", ctypes.c_int32),
        ("unknown_nodes", ctypes.c_uint32),
    ]


StateWrite = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
StateRead = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_handle = ctypes.c_void_p
_status = ctypes.c_int32
_flags = ctypes.POINTER(ctypes.c_uint32)
_count = ctypes.POINTER(ctypes.c_uint64)
_SIGNATURES = {
    "gw_join": (_status, ctypes.POINTER(JoinOptions), ctypes.POINTER(_handle)),
    "gw_leave": (_status, _handle),
    "gw_rank": (ctypes.c_int32, _handle),
    "gw_world": (ctypes.c_int32, _handle),
    "gw_local_ranks": (ctypes.c_int32, _handle),
    "gw_epoch": (ctypes.c_uint64, _handle),
    "gw_previous_epoch": (_status, _handle, ctypes.c_char_p, ctypes.POINTER(ProgressStruct)),
    "gw_bucket_create": (_status, _handle, ctypes.c_char_p, ctypes.c_uint8, ctypes.POINTER(Layer),
                         ctypes.c_size_t, ctypes.c_uint32, ctypes.POINTER(_handle)),
    "gw_bucket_destroy": (_status, _handle),
    "gw_bucket_elements": (ctypes.c_uint64, _handle),
    "gw_bucket_bytes": (ctypes.c_uint64, _handle),
    "gw_bucket_gradient": (ctypes.c_void_p, _handle),
    "gw_bucket_result": (ctypes.c_void_p, _handle),
    "gw_bucket_codec": (ctypes.c_char_p, _handle),
    "gw_allreduce_scaled": (_status, _handle, ctypes.c_uint8, ctypes.c_double),
    "gw_flush_scaled": (_status, _handle, ctypes.c_uint8, ctypes.c_double),
    "gw_broadcast": (_status, _handle, ctypes.c_int32),
    "gw_bucket_shard": (_status, _handle, ctypes.c_int32, _count, _count),
    "gw_allgather": (_status, _handle),
    "gw_reduce_scatter": (_status, _handle, ctypes.c_uint8),
    "gw_wait": (_status, _handle, ctypes.c_int64, _flags),
    "gw_test": (_status, _handle, ctypes.POINTER(ctypes.c_int), _flags),
    "gw_barrier": (_status, _handle, ctypes.c_int64),
    "gw_job_traffic": (_status, _handle, ctypes.POINTER(TrafficStruct)),
    "gw_state_save": (_status, _handle, StateWrite, ctypes.c_void_p),
    "gw_state_load": (_status, _handle, StateRead, ctypes.c_void_p),
    "gw_last_error": (ctypes.c_char_p,),
    "gw_version": (ctypes.c_char_p,),
}


def candidates():
    """Where the library may be, best first: GRADWIRE_LIBRARY; beside the package; below GRADWIRE_BUILD_DIR;
    in the prefix that the package is installed in; wherever the loader looks."""
    if os.environ.get("GRADWIRE_LIBRARY"):
        return [os.environ["GRADWIRE_LIBRARY"]]
    here = os.path.dirname(os.path.abspath(__file__))
    found = [os.path.join(here, SONAME)]
    if os.environ.get("GRADWIRE_BUILD_DIR"):
        found.append(os.path.join(os.environ["GRADWIRE_BUILD_DIR"], "client", SONAME))
    prefix = os.path.normpath(os.path.join(here, *[os.pardir] * 4))  # lib/python3/dist-packages/gradwire
    if prefix != os.path.sep:
        found += sorted(glob.glob(os.path.join(prefix, "lib*", SONAME)))
        found += sorted(glob.glob(os.path.join(prefix, "lib", "*", SONAME)))
    return [path for path in found if os.path.exists(path)] + [SONAME]


_library = None


def library():
    """The loaded library; the first call loads it."""
    global _library
    if _library is None:
        path = candidates()[0]
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise UnavailableError(
                f"{path} cannot be loaded ({error}): install Gradwire's library or set GRADWIRE_LIBRARY to it"
            ) from None
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(loaded, name, None)
            if function is None:
                loaded.gw_version.restype = ctypes.c_char_p
                raise UnsupportedError(
                    f"{path} is libgradwire {loaded.gw_version().decode()} and lacks {name}, which this Python "
                    "package needs: update the library, or set GRADWIRE_LIBRARY to a newer one"
                )
            function.restype = result
            function.argtypes = arguments
        _library = loaded
    return _library


def check(status):
    """Raises the error of a status other than GW_OK, with this thread's sentence."""
    if status != 0:
        error = _ERRORS.get(status, GradwireError)(library().gw_last_error().decode("utf-8", "replace"))
        error.status = status
        raise error
