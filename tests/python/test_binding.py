"""gradwire (ctypes) against the client tests' fake daemon."""
import io
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import gradwire
from gradwire import _native

FAKE_GRADWIRED = sys.argv.pop(1) if len(sys.argv) > 1 else "fake_gradwired"

try:
    import numpy
except ImportError:
    numpy = None


class Binding(unittest.TestCase):
    def setUp(self):
        self.start()

    def start(self, *arguments):
        self.daemon = subprocess.Popen([FAKE_GRADWIRED, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self.end, self.daemon)
        self.socket = self.daemon.stdout.readline().decode().strip()

    def orderly_leaves(self):
        self.daemon.stdin.write(b"\n")
        self.daemon.stdin.flush()
        return int(self.daemon.stdout.readline())

    @staticmethod
    def end(daemon):
        """At the end of its input it ends and removes its folder."""
        try:
            daemon.communicate(timeout=20)
        finally:
            daemon.kill()
            daemon.wait()

    def join(self, rank=0, world=1):
        return gradwire.Job("test", rank=rank, world=world, socket=self.socket, rendezvous="", timeout=20)

    def test_ranks_average(self):
        failures = []

        def rank(number):
            try:
                with self.join(number, 2) as job:
                    self.assertEqual((job.rank, job.world, job.local_ranks), (number, 2, 2))
                    bucket = job.bucket("b", [("weight", 6), ("bias", 2)])
                    self.assertEqual((bucket.elements, bucket.bytes, bucket.codec), (8, 32, "none"))
                    for step in range(20):
                        bucket.gradient[7] = step + 2 * number
                        bucket.allreduce("average")
                        self.assertTrue(bucket.wait(20))
                        self.assertEqual(bucket.result[7], step + 1)
                    bucket.flush(scale=2.0)
                    self.assertTrue(bucket.wait(20))
                    self.assertEqual(bucket.result[7], 20)
                    job.barrier(20)
                    self.assertEqual(job.traffic().operations, 21)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_every_dtype_has_a_view(self):
        with self.join() as job:
            for dtype in gradwire.DTYPES:
                bucket = job.bucket(dtype, [("w", 4)], dtype=dtype)
                self.assertEqual(bucket.gradient.nbytes, bucket.bytes)
                self.assertTrue(bucket.result.readonly)
                bucket.destroy()
            empty = job.bucket("empty", [("w", 0)])
            self.assertEqual(empty.elements, 0)

    @unittest.skipIf(numpy is None, "no numpy")
    def test_numpy_shares_the_memory_and_keeps_it_alive(self):
        with self.join() as job:
            bucket = job.bucket("b", [("w", 1000)])
            array = numpy.frombuffer(bucket.gradient, "f4")
            array[:] = numpy.arange(1000)
            bucket.allreduce("sum")
            bucket.wait()
            numpy.testing.assert_array_equal(numpy.frombuffer(bucket.result, "f4"), numpy.arange(1000))
            with self.assertRaisesRegex(gradwire.BusyError, "arrays or views over bucket b"):
                bucket.destroy()
            del array
            bucket.destroy()
            with self.assertRaisesRegex(gradwire.InvalidError, "destroyed"):
                bucket.allreduce()

    def test_the_compression_state_goes_to_bytes_and_files_and_back(self):
        with self.join() as job:
            self.assertEqual(job.save_state(), b"s" * 10000)
            for other in (b"x" * 5000, bytearray(b"y" * 4096), memoryview(b"z")):
                job.load_state(other)
                self.assertEqual(job.save_state(), bytes(other))
            file = io.BytesIO(b"w" * 9000)
            job.load_state(file)
            file = io.BytesIO()
            self.assertIsNone(job.save_state(file))
            self.assertEqual(file.getvalue(), b"w" * 9000)

    def test_a_file_that_takes_or_gives_little_at_a_time_gets_all_of_the_state(self):
        class Slow(io.RawIOBase):
            def __init__(self, taken):
                self.taken, self.calls, self.data = taken, 0, b""

            def write(self, part):
                self.calls += 1
                taken = self.taken
                if taken is not None:
                    self.data += bytes(part[:taken])
                    taken = min(taken, len(part))
                return taken

            def read(self, size):
                if self.taken is None:
                    return None
                part = self.data[:min(self.taken, size)]
                self.data = self.data[len(part):]
                return part

        class Collector:
            def __init__(self):
                self.data = b""

            def write(self, part):
                self.data += part

        with self.join() as job:
            slow = Slow(1000)
            job.save_state(slow)
            self.assertEqual(slow.data, b"s" * 10000)
            self.assertEqual(slow.calls, 12)  # windows of 4,096 bytes
            slow.data = b"t" * 9000
            job.load_state(slow)
            collector = Collector()
            job.save_state(collector)
            self.assertEqual(collector.data, b"t" * 9000)
            for taken, failure in ((0, gradwire.InvalidError), (None, BlockingIOError)):
                with self.assertRaises(failure):
                    job.save_state(Slow(taken))
            with self.assertRaises(BlockingIOError):
                job.load_state(Slow(None))
            with tempfile.NamedTemporaryFile() as named, open(named.name, "r+b", buffering=0) as raw:
                job.save_state(raw)
                self.assertEqual(pathlib.Path(named.name).read_bytes(), b"t" * 9000)

    def test_what_a_file_raises_while_a_state_goes_through_it_arrives(self):
        class Broken:
            def write(self, part):
                raise OSError(28, "no space left")

            def read(self, size):
                return b"x" * (size + 1)

        with self.join() as job:
            with self.assertRaisesRegex(OSError, "no space left"):
                job.save_state(Broken())
            with self.assertRaisesRegex(gradwire.InvalidError, "4097 bytes where at most 4096"):
                job.load_state(Broken())
            with self.assertRaises(AttributeError):
                job.load_state("text")
            bucket = job.bucket("b", [("w", 4)])
            bucket.allreduce()
            with self.assertRaisesRegex(gradwire.BusyError, "bucket b"):
                job.save_state()
            bucket.wait(20)
            self.assertEqual(len(job.save_state()), 10000)

    def test_test_and_broadcast(self):
        with self.join() as job:
            bucket = job.bucket("b", [("w", 4)], dtype="int32", gradient=False)
            bucket.gradient[3] = 5
            bucket.broadcast(0)
            done = None
            while done is None:
                done = bucket.test()
            self.assertEqual((done, bucket.result[3]), (True, 5))

    def test_errors_are_python_errors_with_their_sentence(self):
        with self.join() as job:
            bucket = job.bucket("b", [("w", 4)], dtype="int32")
            for kind, call in [
                (gradwire.InvalidError, lambda: bucket.allreduce("average")),
                (gradwire.InvalidError, lambda: bucket.allreduce("median")),
                (gradwire.InvalidError, lambda: bucket.wait(1)),
                (gradwire.NotFoundError, lambda: bucket.broadcast(4)),
                (gradwire.InvalidError, lambda: job.bucket("c", [])),
                (gradwire.InvalidError, lambda: job.bucket("c", [("w", 1)], dtype="float8")),
            ]:
                with self.assertRaises(kind) as caught:
                    call()
                self.assertGreater(len(str(caught.exception)), 10)
                self.assertIsInstance(caught.exception, gradwire.GradwireError)
        with self.assertRaisesRegex(gradwire.InvalidError, "left"):
            job.barrier()
        with self.assertRaisesRegex(gradwire.UnavailableError, "no gradwired at /nonexistent/s"):
            gradwire.Job(rank=0, world=1, socket="/nonexistent/s")

    def test_what_ctypes_would_cut_is_refused_with_the_value(self):
        def join(**changes):
            gradwire.Job(**{"job": "j", "rank": 0, "world": 1, "socket": self.socket, "rendezvous": "", **changes})

        with self.join() as job:
            bucket = job.bucket("b", [("w", 4)])
            for call, words in [
                (lambda: join(rank=2**32), "rank is 4294967296; .* from -1 to 65535"),
                (lambda: join(rank=0.5), "rank is 0.5"),
                (lambda: join(world=2**32 + 1), "world is 4294967297; .* to 65536"),
                (lambda: join(job="a\0b"), "job's name .* NUL at byte 1"),
                (lambda: join(run_id="a\0b"), "run id"),
                (lambda: join(rendezvous="a\0b"), "rendezvous"),
                (lambda: join(socket=self.socket + "\0b"), "socket"),
                (lambda: join(timeout=2**61), "at most 1099511627 s"),
                (lambda: join(wait=float("nan")), "the wait is nan"),
                (lambda: job.bucket("a\0b", [("w", 1)]), "bucket's name"),
                (lambda: job.bucket("c", [("a\0b", 1)]), "layer's name"),
                (lambda: job.bucket("c", [("w", 2**64)]), "size of layer 'w' is 18446744073709551616"),
                (lambda: job.bucket("c", [("w", 1.7)]), "size of layer 'w' is 1.7"),
                (lambda: job.bucket("c", [("w", -1)]), "size of layer 'w' is -1"),
                (lambda: job.bucket("c\x9b", [("w", 1)]), "control character"),
                (lambda: job.previous_epoch("b\0"), "bucket's name"),
                (lambda: bucket.broadcast(2**32), "the root is 4294967296"),
                (lambda: bucket.shard(2**32), "the rank is 4294967296"),
                (lambda: bucket.wait(2**61), "at most 1099511627 s, or math.inf"),
                (lambda: bucket.wait(1e300), "at most 1099511627 s"),
                (lambda: bucket.wait(float("nan")), "time-out is nan"),
                (lambda: job.barrier(1e300), "time-out is 1e\\+300"),
            ]:
                with self.assertRaisesRegex(gradwire.InvalidError, words):
                    call()
            bucket.allreduce()
            self.assertTrue(bucket.wait(float("inf")))
            job.barrier(float("inf"))
        join(timeout=float("inf"), wait=float("inf"))

    def test_a_dead_daemon_is_unavailable(self):
        job = self.join()
        bucket = job.bucket("b", [("w", 4)])
        self.daemon.kill()
        self.daemon.wait()
        self.addCleanup(shutil.rmtree, os.path.dirname(self.socket))
        with self.assertRaises(gradwire.UnavailableError):
            bucket.allreduce()
            bucket.wait(20)
        with self.assertRaises(gradwire.UnavailableError):
            job.leave()
        job.leave()

    def test_a_forked_child_is_told(self):
        with self.join() as job:
            child = os.fork()
            if child == 0:
                try:
                    job.barrier(1)
                except gradwire.ForkedError:
                    os._exit(0)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            job.barrier(20)

    def test_a_forked_child_frees_its_copy_and_tells_the_daemon_nothing(self):
        with self.join() as job:
            bucket = job.bucket("b", [("w", 4)])
            job._submitting.acquire()  # as if another thread were at work during the fork
            child = os.fork()
            if child == 0:
                refused = 0
                for call in (bucket.allgather, bucket.shard, job.traffic, lambda: job.previous_epoch("b"), job.leave):
                    try:
                        call()
                    except gradwire.ForkedError:
                        refused += 1
                job.leave()
                os._exit(refused)
            job._submitting.release()
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 5)
            self.assertEqual(self.orderly_leaves(), 0)
            bucket.allreduce()
            bucket.wait(20)

    def program(self, *lines):
        """Runs a program whose first line has joined; returns its exit code."""
        text = "\n".join([
            "import gradwire, os, sys",
            f"job_socket = {self.socket!r}",
            "job = gradwire.Job('test', rank=0, world=1, socket=job_socket, rendezvous='', timeout=20)",
            *lines,
        ])
        return subprocess.run([sys.executable, "-B", "-c", text], stderr=subprocess.DEVNULL, timeout=60).returncode

    def test_a_program_that_ends_well_has_left_its_job(self):
        use = ["b = job.bucket('b', [('w', 4)])", "b.allreduce()"]
        self.assertEqual(self.program(*use, "b.wait()"), 0)
        self.assertEqual(self.orderly_leaves(), 1)
        self.assertEqual(self.program("job.leave()"), 0)
        self.assertEqual(self.orderly_leaves(), 2)
        self.assertEqual(self.program(*use, "b.wait()", "sys.exit()"), 0)
        self.assertEqual(self.orderly_leaves(), 3)
        again = "job = gradwire.Job('test', rank=0, world=1, socket=job_socket, rendezvous='')"
        self.assertEqual(self.program("job.leave()", again), 0)
        self.assertEqual(self.orderly_leaves(), 5)

    def test_a_program_that_fails_or_is_not_done_has_not_left_its_job(self):
        use = ["b = job.bucket('b', [('w', 4)])", "b.allreduce()"]
        for code, *lines in ((1, "raise ValueError"), (1, "sys.exit(1)"), (1, "sys.exit('the loss is not finite')"),
                             (3, "raise SystemExit(3)"), (2, "import argparse", "argparse.ArgumentParser().error('x')"),
                             (1, *use, "b.wait()", "sys.exit(1)"), (0, "os._exit(0)"), (-9, "os.kill(os.getpid(), 9)"),
                             (-2, "import signal", "signal.signal(2, signal.default_int_handler)",
                              "os.kill(os.getpid(), 2)"), (0, *use),
                             (0, "if os.fork() == 0: sys.exit()", "os.wait()", "os._exit(0)")):
            with self.subTest(lines[-1]):
                self.assertEqual(self.program(*lines), code)
                self.assertEqual(self.orderly_leaves(), 0)

    def test_every_operation_on_every_dtype(self):
        with self.join() as job:
            for dtype in gradwire.DTYPES:
                bucket = job.bucket(dtype, [("w", 4)], dtype=dtype, gradient=False)
                gradient, result = memoryview(bucket.gradient).cast("B"), bucket.result.cast("B")
                gradient[:] = bytes(range(bucket.bytes))
                bucket.allgather()
                bucket.wait(20)
                self.assertEqual(result, gradient)
                integer = dtype in ("int32", "int64", "uint8")
                for op in gradwire.REDUCE_OPS:
                    for start in (bucket.allreduce, bucket.flush, bucket.reduce_scatter):
                        if op == "average" and integer:
                            with self.assertRaisesRegex(gradwire.InvalidError, "use GW_SUM"):
                                start(op)
                        else:
                            start(op)
                            bucket.wait(20)
                            self.assertEqual(result, gradient, f"{dtype} {op}")
                self.assertEqual((bucket.shard(), bucket.shard(0)), (slice(0, 4), slice(0, 4)))
                with self.assertRaises(gradwire.NotFoundError):
                    bucket.shard(1)
                del gradient, result
                bucket.destroy()
            with self.assertRaisesRegex(gradwire.UnsupportedError, "sum and average only"):
                job.bucket("g", [("w", 4)]).allreduce("max")

    def test_epochs(self):
        with self.join() as job:
            self.assertEqual((job.epoch, job.previous_epoch("b")), (1, None))
        self.start("later")
        with gradwire.Job("test", rank=0, world=1, socket=self.socket, rendezvous="", wait=5, fresh=True) as job:
            self.assertEqual(job.epoch, 3)
            self.assertEqual(job.previous_epoch("b"), gradwire.Progress(2, 16, 17, 0, 1))
            self.assertIsNone(job.previous_epoch("c"))

    def test_a_daemon_that_is_not_there_is_waited_for(self):
        with self.assertRaisesRegex(gradwire.UnavailableError, r"waited \d+ ms.*no such socket"):
            gradwire.Job(rank=0, world=1, socket="/nonexistent/s", wait=0.05)

    def test_memory_is_out_of_reach_after_the_leave(self):
        job = self.join()
        bucket = job.bucket("b", [("w", 4)])
        job.leave()
        self.assertIsNone(bucket.gradient)
        self.assertIsNone(bucket.result)

    def test_an_older_library_is_named(self):
        with mock.patch.dict(_native._SIGNATURES, {"gw_of_the_future": (_native._status,)}):
            with mock.patch.object(_native, "_library", None):
                with self.assertRaisesRegex(gradwire.UnsupportedError, r"libgradwire \d.*lacks gw_of_the_future"):
                    gradwire.version()

    def test_errors_can_be_pickled_and_caught_as_what_they_are(self):
        for kind, also in [(gradwire.InvalidError, ValueError), (gradwire.UnavailableError, ConnectionError),
                           (gradwire.OperationTimeout, TimeoutError), (gradwire.DeniedError, PermissionError)]:
            error = pickle.loads(pickle.dumps(kind("a sentence")))
            self.assertIsInstance(error, also)
            self.assertIsInstance(error, gradwire.GradwireError)
            self.assertEqual(str(error), "a sentence")

    def test_version(self):
        self.assertRegex(gradwire.version(), r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
