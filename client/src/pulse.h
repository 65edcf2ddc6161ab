// Whether the daemon moves, judged by a waiting caller's own consecutive looks.
#pragma once

#include <cstdint>

namespace gradwire::client {

// A pause of this process or of the whole machine, and a jump of the clock across it, are not the daemon's: a
// gap between two looks starts the count again. One thread.
class Pulse {
 public:
  static constexpr int kLookMs = 100;  // between looks; several fit into kGapNs

  explicit Pulse(int64_t limit_ms = 0) : limit_ns_(limit_ms * 1'000'000) {}

  // `sign` changes while the daemon moves. True: it has stayed the same for longer than the limit while the
  // caller looked all the time.
  bool stands_still(uint64_t sign, int64_t now_ns) {
    const int64_t step = now_ns - last_look_ns_;
    last_look_ns_ = now_ns;
    if (sign != sign_ || step < 0 || step > kGapNs) {
      sign_ = sign;
      quiet_ns_ = 0;
    } else {
      quiet_ns_ += step;
    }
    return quiet_ns_ > limit_ns_;
  }
  int64_t quiet_ms() const { return quiet_ns_ / 1'000'000; }

 private:
  static constexpr int64_t kGapNs = 500'000'000;

  int64_t limit_ns_;
  int64_t last_look_ns_ = INT64_MIN / 2;  // the first look is behind a gap
  int64_t quiet_ns_ = 0;
  uint64_t sign_ = 0;
};

}  // namespace gradwire::client
