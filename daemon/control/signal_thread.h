// SIGTERM, SIGINT and SIGHUP on a thread of their own, which sees them also when every other thread is stuck,
// and which ends the process when an orderly end takes too long.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "client/wire/unique_fd.h"
#include "config/base/result.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

class SignalThread {
 public:
  // Called on this thread; they must not wait for anything.
  struct Handlers {
    std::function<void()> reload;    // SIGHUP
    std::function<void()> stop;      // the first SIGTERM or SIGINT
    std::function<void()> stop_now;  // the second
  };

  // Blocks the signals in the calling thread and all threads that it starts later: before any other thread.
  static void block();

  explicit SignalThread(Handlers handlers) : handlers_(std::move(handlers)) {}
  ~SignalThread();
  Status start();

  // How long an orderly end may take, from the first signal on; any thread.
  void set_limit(Nanoseconds limit) { limit_.store(limit.count(), std::memory_order_relaxed); }
  // No handler is called any more; the process ends within `limit` from here on, whatever happens.
  void finish(Nanoseconds limit);

 private:
  void run();
  void received(int signal);
  void end_by(Nanoseconds limit);  // mutex_ is held
  [[noreturn]] void give_up() const;
  int wait_ms();

  std::mutex mutex_;
  Handlers handlers_;                    // guarded by mutex_
  std::optional<Nanoseconds> deadline_;  // guarded by mutex_; CLOCK_MONOTONIC
  bool over_ = false;                    // guarded by mutex_
  int stops_ = 0;
  std::atomic<int64_t> limit_{10'000'000'000};  // relaxed: one value
  wire::UniqueFd signals_, wake_;
  std::thread thread_;
};

}  // namespace gradwire::control
