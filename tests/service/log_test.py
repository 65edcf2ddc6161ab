"""The log never stands in the way, and nobody can write lines of his own into it."""
import fcntl
import os
import select
import time
import unittest

from support import PATIENCE, Service, ServiceTest, signal


class LogTest(ServiceTest):
    def pipe(self):
        """A pipe that is full."""
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        flags = fcntl.fcntl(write_end, fcntl.F_GETFL)
        fcntl.fcntl(write_end, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        filled = 0
        try:
            while True:
                filled += os.write(write_end, b"." * 4096)
        except BlockingIOError:
            pass
        fcntl.fcntl(write_end, fcntl.F_SETFL, flags)
        return read_end, write_end, filled

    def read_until(self, pipe, wanted):
        deadline = time.monotonic() + PATIENCE
        text = b""
        while wanted not in text:
            ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
            part = os.read(pipe, 4096) if ready else b""
            self.assertTrue(part, f"no {wanted!r} in {text!r}")
            text += part
        return text

    def test_a_log_that_nobody_reads_stops_neither_service_nor_end(self):
        read_end, write_end, filled = self.pipe()
        service = Service(self, self.folder, stderr=write_end)
        os.close(write_end)
        service.wait_ready()
        for i in range(20):
            rank = service.rank(self, ["join", "bucket:b:float32:100", "reduce:b", "forever"], job=f"job{i}")
            rank.wait_ok("reduce:b")
            rank.kill()
        again = service.rank(self, ["join", "bucket:b:float32:100", "reduce:b", "leave"], job="last")
        again.wait_ok("leave")
        service.process.send_signal(signal.SIGTERM)
        self.expect_end(service, 0, 5)
        self.assertEqual(len(os.read(read_end, filled)), filled)  # and the pipe still held what it held

    def test_a_reader_that_comes_late_gets_what_was_kept(self):
        read_end, write_end, filled = self.pipe()
        service = Service(self, self.folder, stderr=write_end)
        os.close(write_end)
        service.wait_ready()
        os.read(read_end, filled)
        self.read_until(read_end, b"event=started")

    def test_journald_gets_priorities_and_no_time(self):
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        info = os.fstat(write_end)
        service = Service(self, self.folder, stderr=write_end,
                          environment={"JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}"})
        os.close(write_end)
        service.wait_ready()
        text = self.read_until(read_end, b"event=started")
        for line in text.decode().splitlines():
            self.assertRegex(line, r"^<[2-7]>")
        # A stream that is somebody else's is no journal.
        other = Service(self, self.folder, name="b", environment={"JOURNAL_STREAM": f"{info.st_dev}:1"})
        other.wait_ready()
        self.assertRegex(other.wait_log("event=started"), r"^\d{4}-\d\d-\d\dT.* level=info event=started ")

    def test_names_of_jobs_are_values_whatever_they_hold(self):
        service = Service(self, self.folder)
        service.wait_ready()
        for name, shown in (('a" cause="x', r'job="a\" cause=\"x"'), ("a event=started", 'job="a event=started"'),
                            ("gr\u00fcn \u0637", 'job="gr\u00fcn \u0637"')):
            rank = service.rank(self, ["join", "forever"], job=name)
            rank.wait_ok("join")
            rank.kill()
            service.wait_log(f" {shown}")
        for name in ("a\nlevel=info event=started node=evil", "\x1b[31mred", "\x9b31mred",
                     "\u202eright\u2028left"):
            rank = service.rank(self, ["join"], job=name)
            self.assertIn("control character", rank.wait_error(PATIENCE)[3])
        service.process.send_signal(signal.SIGTERM)
        self.expect_end(service, 0, 10)
        lines = service.text().split("\n")
        self.assertEqual(lines.pop(), "")
        for line in lines:
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\S+ level=\w+ event=\w+")
            self.assertTrue(line.isprintable(), line)
        self.assertEqual(sum(line.split()[2] == "event=started" for line in lines), 1)

    def test_the_same_message_again_and_again_is_counted(self):
        service = Service(self, self.folder)
        service.wait_ready()
        for _ in range(20):
            rank = service.rank(self, ["join", "forever"], job="again")
            rank.wait_ok("join")
            rank.kill()
            rank.wait_end()
        other = service.rank(self, ["join", "forever"], job="other")
        other.wait_ok("join")
        other.kill()
        service.wait_log("event=trainer_gone rank=0 job=other")
        self.assertEqual(service.text().count("event=trainer_gone rank=0 job=again"), 5)


if __name__ == "__main__":
    unittest.main()
