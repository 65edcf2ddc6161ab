"""gradwire (ctypes) against the client tests' fake daemon."""
import os
import subprocess
import sys
import threading
import unittest

import gradwire

FAKE_GRADWIRED = sys.argv.pop(1) if len(sys.argv) > 1 else "fake_gradwired"

try:
    import numpy
except ImportError:
    numpy = None


class Binding(unittest.TestCase):
    def setUp(self):
        self.daemon = subprocess.Popen([FAKE_GRADWIRED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.socket = self.daemon.stdout.readline().decode().strip()

    def tearDown(self):
        self.daemon.communicate(timeout=20)

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
                    job.barrier(20)
                    self.assertEqual(job.traffic().operations, 20)
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

    def test_a_dead_daemon_is_unavailable(self):
        job = self.join()
        bucket = job.bucket("b", [("w", 4)])
        self.daemon.kill()
        self.daemon.wait()
        with self.assertRaises(gradwire.UnavailableError):
            bucket.allreduce()
            bucket.wait(20)
        with self.assertRaises(gradwire.UnavailableError):
            job.leave()
        job.leave()
        os.unlink(self.socket)
        os.rmdir(os.path.dirname(self.socket))

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

    def test_version(self):
        self.assertRegex(gradwire.version(), r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
