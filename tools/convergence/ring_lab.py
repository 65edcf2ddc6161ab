"""The ring of reducers of libgradwire_ring_lab.so, for numpy or torch arrays."""
import ctypes
import hashlib
import json
import os

import numpy

ALGORITHMS = ("ring", "direct")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

BUILD = "tools/dev/build.sh release gradwire_ring_lab"


class LabError(RuntimeError):
    pass


class NoLibrary(RuntimeError):
    """It is not built, or cannot be loaded."""


class _Counts(ctypes.Structure):
    _fields_ = [
        ("operations", ctypes.c_uint64),
        ("wire_bytes", ctypes.c_uint64),
        ("header_bytes", ctypes.c_uint64),
        ("raw_bytes", ctypes.c_uint64),
        ("residual_norm", ctypes.c_double),
        ("density", ctypes.c_double),
    ]


def find_library():
    """GRADWIRE_RING_LAB, or that of the release build."""
    path = os.environ.get("GRADWIRE_RING_LAB")
    path = path or os.path.normpath(os.path.join(ROOT, "build", "release", "tools", "libgradwire_ring_lab.so"))
    if not os.path.exists(path):
        raise NoLibrary(f"{path} is not there; build it ({BUILD}) or set GRADWIRE_RING_LAB")
    return path


def _load(path):
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise NoLibrary(f"{error}; build the library again ({BUILD})") from None
    library.gwlab_create.restype = ctypes.c_void_p
    library.gwlab_create.argtypes = [ctypes.c_char_p]
    library.gwlab_allreduce.restype = ctypes.c_int
    library.gwlab_allreduce.argtypes = [ctypes.c_void_p] * 3
    library.gwlab_count.restype = None
    library.gwlab_count.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Counts)]
    library.gwlab_error.restype = ctypes.c_char_p
    library.gwlab_destroy.restype = None
    library.gwlab_destroy.argtypes = [ctypes.c_void_p]
    return library


class Ring:
    """`nodes` nodes with one rank each. `layers`: (name, elements). `settings` and `rules` are a daemon's
    `compression` options, with underscores and without that prefix; what is left out has its default. `algorithm`:
    ring, or direct (a chunk's shares go straight to its owner)."""

    def __init__(self, nodes, layers, settings, rules=(), library=None, algorithm="ring"):
        self._lab = None
        self._library = _load(library or find_library())
        self.nodes = nodes
        self.elements = sum(elements for _, elements in layers)
        document = {"nodes": nodes, "algorithm": algorithm, "layers": list(layers)}
        document |= {"defaults": settings, "rules": list(rules)}
        self._lab = self._library.gwlab_create(json.dumps(document).encode())
        if not self._lab:
            # What a daemon asks where the settings come from another one.
            raise LabError(self._error().removesuffix("; do all nodes run the same version?"))

    def _error(self):
        return self._library.gwlab_error().decode(errors="replace")

    def allreduce(self, gradients, average):
        """Averages contiguous float32 `gradients` (nodes x elements) into `average`. False: not finite, no result."""
        if gradients.shape != (self.nodes, self.elements) or tuple(average.shape) != (self.elements,):
            raise ValueError(f"shapes {tuple(gradients.shape)} and {tuple(average.shape)} do not fit the ring")
        done = self._library.gwlab_allreduce(self._lab, _address(gradients), _address(average))
        if done < 0:
            raise LabError(self._error())
        return done == 1

    def counts(self):
        counts = _Counts()
        self._library.gwlab_count(self._lab, ctypes.byref(counts))
        return counts

    def close(self):
        if self._lab:
            self._library.gwlab_destroy(self._lab)
            self._lab = None

    def __del__(self):
        self.close()


def _address(array):
    if hasattr(array, "data_ptr"):
        if not array.is_contiguous() or str(array.dtype) != "torch.float32":
            raise ValueError("a tensor must be contiguous and of float32")
        return array.data_ptr()
    if not array.flags.c_contiguous or array.dtype != "float32":
        raise ValueError("an array must be contiguous and of float32")
    return array.ctypes.data


class Fingerprints:
    """Hashes of what the library makes of some gradients: the same from build to build while a codec is the same.
    An experiment (`spec`) is known by its nodes, algorithm, settings and rules."""

    LAYERS = (("1.weight", 70000), ("1.bias", 128), ("2.weight", 9000), ("3.weight", 4000), ("3.bias", 10))
    SCALES = (1.0, 0.1, 0.01, 1.0, 10.0)
    STEPS = 14
    WARM_START = 2  # steps a stage at most: through all of them

    def __init__(self, library):
        self.library = library
        self.known = {}
        sizes = [elements for _, elements in self.LAYERS]
        scales = numpy.repeat(numpy.float32(self.SCALES), sizes)
        self.gradient = numpy.random.default_rng(1).laplace(size=sum(sizes)).astype(numpy.float32) * scales

    def of(self, spec):
        name = json.dumps([spec["nodes"], spec["algorithm"], spec["settings"], spec.get("rules", ())], sort_keys=True)
        if name not in self.known:
            self.known[name] = self._of(spec)
        return self.known[name]

    def _brief(self, settings):
        steps = settings.get("warm_start_steps")
        if type(steps) is not int or steps <= self.WARM_START:
            return settings
        return {**settings, "warm_start_steps": self.WARM_START}

    def _of(self, spec):
        nodes = spec["nodes"]
        settings = self._brief({"warm_start_steps": self.WARM_START, **spec["settings"]})
        rules = [self._brief(rule) for rule in spec.get("rules", ())]
        digest = hashlib.sha256()
        try:
            ring = Ring(nodes, self.LAYERS, settings, rules, self.library, spec["algorithm"])
        except LabError:
            return "unknown"
        average = numpy.empty_like(self.gradient)
        for step in range(self.STEPS):
            given = numpy.stack([numpy.roll(self.gradient, 7 * node + 31 * step) for node in range(nodes)])
            ring.allreduce(given, average)
            digest.update(average.tobytes())
        digest.update(str(ring.counts().wire_bytes).encode())
        ring.close()
        return digest.hexdigest()
