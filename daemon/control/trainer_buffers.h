// Bytes that trainers' sockets make the daemon hold: documents that are not complete, and answers that are
// not taken. Bounded for each user and in all, so that one user's trainers cannot use up the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace gradwire::control {

class TrainerBuffers {
 public:
  static constexpr size_t kPerUser = size_t{128} << 20;
  static constexpr size_t kInAll = size_t{512} << 20;

  // What a connection holds changes from `before` to `after` bytes. False, and nothing changes: that is too
  // much. Less is always granted.
  bool change(uint32_t uid, size_t before, size_t after) {
    const auto found = users_.find(uid);
    const size_t held = (found == users_.end() ? 0 : found->second) - before + after;
    const size_t all = all_ - before + after;
    if (after > before && (held > kPerUser || all > kInAll)) {
      return false;
    }
    all_ = all;
    if (held == 0) {
      users_.erase(uid);
    } else {
      users_[uid] = held;
    }
    return true;
  }
  size_t held() const { return all_; }

 private:
  std::map<uint32_t, size_t> users_;
  size_t all_ = 0;
};

}  // namespace gradwire::control
