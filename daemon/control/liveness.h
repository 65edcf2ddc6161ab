// Heartbeats on one link: sends one every quarter of the time-out and tells when nothing was heard for the
// whole of it. A wait that this process itself overslept does not count against the other side.
#pragma once

#include <functional>

#include "daemon/control/link.h"

namespace gradwire::control {

class Liveness {
 public:
  // `silent` may destroy this object.
  Liveness(Scheduler& scheduler, LinkPtr link, Nanoseconds timeout, std::function<void(const Status&)> silent)
      : scheduler_(scheduler),
        link_(std::move(link)),
        timeout_(timeout),
        silent_(std::move(silent)),
        timer_(scheduler),
        heard_(scheduler.now()),
        ticked_(heard_) {
    timer_.start(timeout_ / 4, [this] { tick(); });
  }

  void heard() { heard_ = scheduler_.now(); }
  Nanoseconds last_heard() const { return heard_; }

 private:
  void tick() {
    const Nanoseconds now = scheduler_.now();
    // A stopped or starved process finds the other side's documents only after this timer.
    const Nanoseconds overslept = now - ticked_ - timeout_ / 4;
    if (overslept > timeout_ / 4) {
      heard_ += overslept;
    }
    ticked_ = now;
    if (now - heard_ >= timeout_) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count();
      const auto silent = silent_;
      silent(Status(Code::kUnavailable, "no heartbeat for " + std::to_string(milliseconds) + " ms"));
      return;
    }
    link_->send({{"type", "beat"}});
    timer_.start(timeout_ / 4, [this] { tick(); });
  }

  Scheduler& scheduler_;
  LinkPtr link_;
  Nanoseconds timeout_;
  std::function<void(const Status&)> silent_;
  Timer timer_;
  Nanoseconds heard_;
  Nanoseconds ticked_;
};

}  // namespace gradwire::control
