"""The log never stands in the way, and nobody can write lines of his own into it."""
import fcntl
import os
import time
import unittest

from support import Service, ServiceTest, signal


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
        text = b""
        deadline = time.monotonic() + 10
        while b"event=started" not in text and time.monotonic() < deadline:
            text += os.read(read_end, 4096)
        self.assertIn(b"event=started", text)

    def test_journald_gets_priorities_and_no_time(self):
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        info = os.fstat(write_end)
        service = Service(self, self.folder, stderr=write_end,
                          environment={"JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}"})
        os.close(write_end)
        service.wait_ready()
        text = b""
        while b"event=started" not in text:
            text += os.read(read_end, 4096)
        for line in text.decode().splitlines():
            self.assertRegex(line, r"^<[2-7]>")
        # A stream that is somebody else's is no journal.
        other = Service(self, self.folder, name="b", environment={"JOURNAL_STREAM": f"{info.st_dev}:1"})
        other.wait_ready()
        self.assertRegex(other.wait_log("event=started"), r"^\d{4}-\d\d-\d\dT.* level=info event=started ")

    def test_names_of_jobs_are_values_whatever_they_hold(self):
        service = Service(self, self.folder)
        service.wait_ready()
        for name in ('a" cause="x', "a\nlevel=info event=started node=evil", "\x1b[31mred", "\u202eright to left"):
            rank = service.rank(self, ["join", "forever"], job=name)
            try:
                rank.wait_ok("join", 5)
            except AssertionError:
                continue  # refused: as good
            finally:
                rank.kill()
        time.sleep(0.5)
        for line in service.text().splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\S+ level=\w+ event=\w+")
            self.assertNotIn("\x1b", line)
            self.assertNotIn("\u202e", line)
        self.assertEqual(sum(" event=started " in line for line in service.text().splitlines()
                             if "evil" in line and line.split()[2] == "event=started"), 0)

    def test_the_same_message_again_and_again_is_counted(self):
        service = Service(self, self.folder)
        service.wait_ready()
        for _ in range(20):
            rank = service.rank(self, ["join", "forever"], job="again")
            rank.wait_ok("join")
            rank.kill()
            rank.wait_end()
        time.sleep(0.3)
        self.assertLessEqual(service.text().count("event=trainer_gone"), 5)
        other = service.rank(self, ["join", "forever"], job="other")
        other.wait_ok("join")
        other.kill()
        service.wait_log("job=other")


if __name__ == "__main__":
    unittest.main()
