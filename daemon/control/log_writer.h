// Where log lines go: into a bounded queue, and from there to standard error by a thread of its own. Whoever
// logs never waits for whoever reads the log; if nobody reads it, the oldest lines are dropped and counted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace gradwire::control {

class LogWriter {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;  // of lines that wait

  // `dropped` makes the line which says that so many are missing. The thread runs until the process ends,
  // because nothing can wake it from a write that nobody reads: a LogWriter is never destroyed.
  static LogWriter& start(int fd, std::function<std::string(uint64_t count)> dropped);

  void push(std::string line);  // with its line feed; any thread
  // Waits until everything has been written, at most so long. True: it has.
  bool flush(std::chrono::milliseconds limit);

 private:
  LogWriter(int fd, std::function<std::string(uint64_t)> dropped)
      : fd_(fd), dropped_line_(std::move(dropped)) {}
  [[noreturn]] void run();
  void write_out(const std::string& text) const;

  const int fd_;
  const std::function<std::string(uint64_t)> dropped_line_;
  std::mutex mutex_;
  std::condition_variable pushed_, written_;
  std::deque<std::string> lines_;
  size_t bytes_ = 0;
  uint64_t dropped_ = 0;
  bool writing_ = false;
};

// Standard error becomes the target of spdlog's default logger: for journald, which reads a line's priority
// from a prefix and knows the time itself, or else with time and level.
void start_log(const std::string& level);
void set_log_level(const std::string& level);
// As LogWriter::flush; true also where start_log was never called.
bool flush_log(std::chrono::milliseconds limit);

}  // namespace gradwire::control
