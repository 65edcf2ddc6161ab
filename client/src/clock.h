// Deadlines on CLOCK_MONOTONIC.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace gradwire::client {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Deadline {
 public:
  static Deadline never() { return Deadline(INT64_MAX); }
  static Deadline after_ms(int64_t ms) {
    constexpr int64_t kLongest = int64_t{1} << 42;  // ms; what is longer is as good as never
    return ms >= kLongest ? never() : Deadline(now_ns() + std::max<int64_t>(ms, 0) * 1'000'000);
  }

  bool passed() const { return at_ != INT64_MAX && now_ns() >= at_; }
  // For poll: rounded up, at most `longest_ms`; -1 (for ever) only if longest_ms is -1.
  int poll_ms(int longest_ms = -1) const {
    if (at_ == INT64_MAX) {
      return longest_ms;
    }
    const int64_t left = std::max<int64_t>(0, (at_ - now_ns() + 999'999) / 1'000'000);
    const int64_t limit = longest_ms < 0 ? INT32_MAX : longest_ms;
    return static_cast<int>(std::min(left, limit));
  }

 private:
  explicit Deadline(int64_t at) : at_(at) {}
  int64_t at_;
};

}  // namespace gradwire::client
