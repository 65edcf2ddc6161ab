"""The example trainer: its IDX reader, and that a seed decides its numbers."""
import gzip
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

EXAMPLES = sys.argv.pop(1) if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../../tools/examples")
sys.path.insert(0, EXAMPLES)
import fashion_mnist  # noqa: E402


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_data(directory, count=512):
    """Images whose class is the row that is bright."""
    random = numpy.random.default_rng(1)
    for part, (images, labels) in fashion_mnist.FILES.items():
        classes = random.integers(0, 10, count).astype(numpy.uint8)
        pixels = random.integers(0, 60, (count, 28, 28)).astype(numpy.uint8)
        for i, which in enumerate(classes):
            pixels[i, 2 * which + 3] = 255
        with open(os.path.join(directory, images), "wb") as file:
            file.write(idx(pixels))
        with gzip.open(os.path.join(directory, labels) + ".gz", "wb") as file:
            file.write(idx(classes))


class Reader(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = os.path.join(self.directory.name, "x")

    def write(self, data):
        with open(self.path, "wb") as file:
            file.write(data)

    def test_reads_raw_and_compressed_files(self):
        array = numpy.arange(24, dtype=numpy.uint8).reshape(2, 3, 4)
        self.write(idx(array))
        numpy.testing.assert_array_equal(fashion_mnist.read_idx(self.path), array)
        os.rename(self.path, self.path + ".raw")
        with gzip.open(self.path + ".gz", "wb") as file:
            file.write(idx(array))
        numpy.testing.assert_array_equal(fashion_mnist.read_idx(self.path), array)

    def test_refuses_what_is_not_idx(self):
        good = idx(numpy.zeros((2, 2), numpy.uint8))
        for bad in (b"", b"\0\0\x08", b"PNG" + good, b"\0\0\x0d\x01" + good[4:], good[:7], good[:-1], good + b"x"):
            self.write(bad)
            with self.assertRaises(ValueError):
                fashion_mnist.read_idx(self.path)


class Training(unittest.TestCase):
    def train(self, data, world, *arguments):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-B", os.path.join(EXAMPLES, "fashion_mnist.py"), "--backend", "gloo",
                   "--data", data, "--batch", "64", *arguments]
        ranks = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(
                os.environ, RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"))
            for rank in range(world)
        ]
        try:
            outputs = [rank.communicate(timeout=100)[0].decode() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.assertEqual([rank.returncode for rank in ranks], [0] * world, "\n".join(outputs))
        return re.findall(r"accuracy (\d+\.\d\d) loss (\d+\.\d+)", outputs[0])

    def test_a_seed_decides_the_numbers_and_it_learns(self):
        with tempfile.TemporaryDirectory() as data:
            write_data(data)
            runs = [self.train(data, 2, "--epochs", "3", "--model", "mlp", "--seed", "4") for _ in range(2)]
            self.assertEqual(len(runs[0]), 3)
            self.assertEqual(runs[0], runs[1])
            self.assertGreater(float(runs[0][-1][0]), 60)
            self.assertEqual(len(self.train(data, 1, "--epochs", "1", "--model", "cnn", "--limit", "128")), 1)


if __name__ == "__main__":
    unittest.main()
