// Time and deferred work, given from outside so that the state machines run on virtual time in tests.
//
// Everything happens on one thread: the control thread, or the test's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace gradwire::control {

using Nanoseconds = std::chrono::nanoseconds;
using Work = std::function<void()>;

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  virtual Nanoseconds now() const = 0;  // CLOCK_MONOTONIC, or virtual time
  // Runs `work` once after `delay`. The number, never 0, is for cancel().
  virtual uint64_t after(Nanoseconds delay, Work work) = 0;
  virtual void cancel(uint64_t timer) = 0;  // of an unknown timer: nothing
  virtual void post(Work work) = 0;         // later, in the order of the calls
};

// One timer that stops when its owner goes away.
class Timer {
 public:
  explicit Timer(Scheduler& scheduler) : scheduler_(scheduler) {}
  ~Timer() { stop(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(Nanoseconds delay, Work work) {
    stop();
    id_ = scheduler_.after(delay, [this, work = std::move(work)] {
      id_ = 0;
      Work running = work;  // `work` may destroy this timer, and the closure with it
      running();
    });
  }
  void stop() {
    if (id_ != 0) {
      scheduler_.cancel(std::exchange(id_, 0));
    }
  }
  bool running() const { return id_ != 0; }

 private:
  Scheduler& scheduler_;
  uint64_t id_ = 0;
};

}  // namespace gradwire::control
