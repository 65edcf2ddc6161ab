#include "daemon/control/log_writer.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

std::atomic<LogWriter*> the_writer{nullptr};  // release in start_log, acquire in flush_log

// "<4>": what journald reads a line's priority from.
class JournalPriority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const char priority = message.level >= spdlog::level::critical ? '2'
                          : message.level == spdlog::level::err    ? '3'
                          : message.level == spdlog::level::warn   ? '4'
                          : message.level == spdlog::level::info   ? '6'
                                                                   : '7';
    const char text[] = {'<', priority, '>'};
    out.append(text, text + sizeof(text));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JournalPriority>();
  }
};

// systemd names device and inode of the stream that goes to the journal (systemd.exec(5), JOURNAL_STREAM).
bool is_journal(int fd) {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  unsigned long long device = 0, inode = 0;
  struct stat info {};
  return stream != nullptr &&
         std::sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&  // NOLINT(cert-err34-c)
         fstat(fd, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

std::unique_ptr<spdlog::pattern_formatter> make_formatter(bool journal) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JournalPriority>('*');
  formatter->set_pattern(journal ? "%*%v" : "%Y-%m-%dT%H:%M:%S.%e%z level=%l %v");
  return formatter;
}

class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(LogWriter& writer) : writer_(writer) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    writer_.push(std::string(text.data(), text.size()));
  }
  void flush_() override {}

 private:
  LogWriter& writer_;
};

}  // namespace

LogWriter& LogWriter::start(int fd, std::function<std::string(uint64_t)> dropped) {
  auto* const writer = new LogWriter(fd, std::move(dropped));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([writer] { writer->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), "gw-log");
  thread.detach();
  return *writer;
}

void LogWriter::push(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    bytes_ += line.size();
    lines_.push_back(std::move(line));
    while (bytes_ > kMaxBytes) {
      bytes_ -= lines_.front().size();
      lines_.pop_front();
      ++dropped_;
    }
  }
  pushed_.notify_one();
}

bool LogWriter::flush(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return written_.wait_for(lock, limit, [this] { return lines_.empty() && !writing_; });
}

void LogWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    writing_ = false;
    if (lines_.empty()) {
      written_.notify_all();
    }
    pushed_.wait(lock, [this] { return !lines_.empty(); });
    std::string text = dropped_ > 0 ? dropped_line_(std::exchange(dropped_, 0)) : std::string();
    text += lines_.front();
    bytes_ -= lines_.front().size();
    lines_.pop_front();
    writing_ = true;
    lock.unlock();
    write_out(text);
    lock.lock();
  }
}

void LogWriter::write_out(const std::string& text) const {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd_, text.data() + done, text.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd entry{fd_, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return;  // nobody can be told
    }
  }
}

void start_log(const std::string& level) {
  const bool journal = is_journal(STDERR_FILENO);
  const auto formatter = std::shared_ptr<spdlog::pattern_formatter>(make_formatter(journal));
  LogWriter& writer = LogWriter::start(STDERR_FILENO, [formatter](uint64_t count) {
    const std::string event = format_event(
        "log_dropped", {{"lines", std::to_string(count)}, {"cause", "nobody read the log in time"}});
    spdlog::memory_buf_t text;
    formatter->format(spdlog::details::log_msg("gradwired", spdlog::level::warn, event), text);
    return std::string(text.data(), text.size());
  });
  the_writer.store(&writer, std::memory_order_release);
  auto sink = std::make_shared<QueueSink>(writer);
  sink->set_formatter(make_formatter(journal));
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("gradwired", std::move(sink)));
  set_log_level(level);
}

void set_log_level(const std::string& level) {
  spdlog::default_logger_raw()->set_level(spdlog::level::from_str(level));
}

bool flush_log(std::chrono::milliseconds limit) {
  LogWriter* const writer = the_writer.load(std::memory_order_acquire);
  return writer == nullptr || writer->flush(limit);
}

}  // namespace gradwire::control
