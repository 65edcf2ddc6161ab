// Heartbeats on one link: sends one every sixth of the time-out and tells when nothing was heard for the
// whole of it and a quarter more. A wait that this process itself overslept does not count against the other
// side.
//
// The quarter: a host that lost its link asks for its neighbours' addresses (ARP) once a second, so that
// after a break of one second it may speak only after two, and its last beat may have been a sixth earlier.
#pragma once

#include <algorithm>
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
        heard_(scheduler.now()) {
    if (!link_->within_process()) {
      wait();
    }
  }

  void heard() { heard_ = scheduler_.now(); }
  Nanoseconds last_heard() const { return heard_; }

 private:
  Nanoseconds beat() const { return timeout_ / 6; }
  Nanoseconds patience() const { return timeout_ + timeout_ / 4; }

  void wait() {
    const Nanoseconds now = scheduler_.now();
    const Nanoseconds delay = std::clamp<Nanoseconds>(heard_ + patience() - now, Nanoseconds(1), beat());
    due_ = now + delay;
    timer_.start(delay, [this] { tick(); });
  }

  void tick() {
    const Nanoseconds now = scheduler_.now();
    // A stopped or starved process finds the other side's documents only after this timer.
    const Nanoseconds overslept = now - due_;
    if (overslept > beat()) {
      heard_ += overslept;
    }
    heard_ = link_->waits() ? now : heard_;
    if (now - heard_ >= patience()) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(patience()).count();
      const auto silent = silent_;
      silent(Status(Code::kUnavailable, "no heartbeat for " + std::to_string(milliseconds) + " ms"));
      return;
    }
    link_->send({{"type", "beat"}});
    wait();
  }

  Scheduler& scheduler_;
  LinkPtr link_;
  Nanoseconds timeout_;
  std::function<void(const Status&)> silent_;
  Timer timer_;
  Nanoseconds heard_;
  Nanoseconds due_{};  // of the timer
};

}  // namespace gradwire::control
