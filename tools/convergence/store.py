"""Results of training, a JSON line each, under keys that change with whatever could change a result."""
import hashlib
import importlib.metadata
import json
import os
import tempfile
import threading

import ring_lab

HERE = os.path.dirname(os.path.abspath(__file__))
CODE = ("tasks.py", "training.py", "corpus.py", "../examples/fashion_mnist.py")
FIGURES = ("metric", "ratio", "ratio_sent", "left_out", "seconds")
GUESS = {"mlp": 4.0, "cnn": 7.0, "lm": 70.0}  # seconds an epoch where none was seen


class NoStore(RuntimeError):
    pass


def file_hash(*paths):
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def torch_version():
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"


class Results:
    """Of the file at `path`; None: of this process only. Thread-safe."""

    def __init__(self, path, library):
        self.path = path
        self.fingerprints = ring_lab.Fingerprints(library)
        self.code = file_hash(*(os.path.join(HERE, name) for name in CODE))
        self.torch = torch_version()
        self.lock = threading.Lock()
        self.by_key = {}
        self.seconds = dict(GUESS)
        if path is None:
            return
        try:
            with open(path, errors="replace") as file:
                for line in file:
                    self._take(line)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise NoStore(f"{path} cannot be read: {error.strerror}; name another file with --results") from None

    def check_writable(self):
        """Before hours of training: NoStore says why nothing could be kept."""
        if self.path is None:
            return
        folder = os.path.dirname(os.path.abspath(self.path))
        try:
            os.makedirs(folder, exist_ok=True)
            with open(self.path, "ab"), tempfile.TemporaryFile(dir=folder) as room:
                room.write(bytes(65536))
        except OSError as error:
            raise NoStore(f"{self.path} cannot be written: {error.strerror}; name another file with --results") from None

    def _take(self, line):
        """Leaves out what a full disk or a kill cut short, and what lacks a field."""
        try:
            result = json.loads(line)
            spec = result["spec"]
            whole = isinstance(result["key"], str) and isinstance(spec["task"], str)
            whole = whole and all(isinstance(result[field], (int, float)) for field in FIGURES)
            whole = whole and {"seed", "nodes", "algorithm", "lr", "settings"} <= spec.keys()
            seconds = result["seconds"] / spec["epochs"]
        except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            return
        if whole:
            self.by_key[result["key"]] = result
            if not spec.get("max_steps"):
                self.seconds[spec["task"]] = seconds

    def key(self, run):
        return self.key_of(run["spec"])

    def key_of(self, spec):
        """Changes with whatever could change the result."""
        text = json.dumps([spec, self.torch], sort_keys=True) + self.code + self.fingerprints.of(spec)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def get(self, run):
        return self.by_key.get(self.key(run))

    def metric(self, run):
        result = self.get(run)
        return result and result["metric"]

    def add(self, run, result):
        key = self.key(run)
        line = json.dumps({"key": key, "label": run["label"], "spec": run["spec"], **result})
        with self.lock:
            if self.path is not None:
                self._append(line)
            self._take(line)
        if key not in self.by_key:
            raise ValueError(f"a result lacks some of its fields: {line}")

    def _append(self, line):
        with open(self.path, "ab+") as file:
            if file.tell() > 0 and not self._ends_a_line(file):
                line = "\n" + line  # after a line that was cut short
            file.write(line.encode() + b"\n")

    @staticmethod
    def _ends_a_line(file):
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

    def estimate(self, run):
        spec = run["spec"]
        full = self.seconds.get(spec["task"], 60.0) * spec["epochs"]
        return full if not spec.get("max_steps") else min(full, 0.1 * spec["max_steps"] * spec["epochs"])
