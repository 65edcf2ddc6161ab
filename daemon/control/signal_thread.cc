#include "daemon/control/signal_thread.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "daemon/control/log.h"
#include "daemon/control/log_writer.h"

namespace gradwire::control {
namespace {

constexpr Nanoseconds kAtOnce = std::chrono::seconds(1);
constexpr std::chrono::milliseconds kLastWords{300};

sigset_t our_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

const char* name_of(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGHUP";
}

Nanoseconds now() {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

void SignalThread::block() {
  const sigset_t set = our_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Status SignalThread::start() {
  const sigset_t set = our_signals();
  signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signals_.valid() || !wake_.valid()) {
    return Status(Code::kResourceExhausted, std::string("the descriptors for signals: ") +
                                                std::strerror(errno) +
                                                "; raise the limit of open files (LimitNOFILE=, ulimit -n)");
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "gw-signals");
  return ok_status();
}

SignalThread::~SignalThread() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }
}

void SignalThread::finish(Nanoseconds limit) {
  {
    const std::lock_guard lock(mutex_);
    handlers_ = {};
    end_by(limit);
  }
  if (wake_.valid()) {
    eventfd_write(wake_.get(), 1);
  }
}

void SignalThread::end_by(Nanoseconds limit) {
  const Nanoseconds deadline = now() + limit;
  deadline_ = deadline_ ? std::min(*deadline_, deadline) : deadline;
}

void SignalThread::received(int signal) {
  log_info("signal", {{"signal", name_of(signal)}});
  const std::lock_guard lock(mutex_);
  const auto call = [](const std::function<void()>& handler) {
    if (handler) {
      handler();
    }
  };
  if (signal == SIGHUP) {
    call(handlers_.reload);
    return;
  }
  end_by(++stops_ == 1 ? Nanoseconds(limit_.load(std::memory_order_relaxed)) : kAtOnce);
  call(stops_ == 1 ? handlers_.stop : handlers_.stop_now);
}

// -1: until a signal comes.
int SignalThread::wait_ms() {
  const std::lock_guard lock(mutex_);
  if (!deadline_) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

void SignalThread::run() {
  for (;;) {
    pollfd entries[] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    poll(entries, 2, wait_ms());
    {
      const std::lock_guard lock(mutex_);
      if (over_) {
        return;
      }
    }
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      received(static_cast<int>(info.ssi_signo));
    }
    if (wait_ms() == 0) {
      give_up();
    }
  }
}

void SignalThread::give_up() const {
  log_error("stop_forced",
            {{"cause", "the engine's or the control thread is stuck: the process ends without them"}});
  flush_log(kLastWords);
  _exit(1);
}

}  // namespace gradwire::control
