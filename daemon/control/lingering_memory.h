// Memory that trainers were given is memory until they, too, have let go of it, however long ago the daemon
// has: it stays charged to its user until then.
//
// The kernel tells when an inode has nobody any more (inotify: IN_IGNORED), whatever held it: descriptors,
// also O_PATH or on their way in a socket, or mappings. Nothing runs meanwhile; who wants to know collects.
// Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "client/wire/unique_fd.h"

namespace gradwire::control {

class LingeringMemory : public std::enable_shared_from_this<LingeringMemory> {
 public:
  // Of one user: what the daemon has let go of and somebody else has not.
  struct Kept {
    uint64_t pieces = 0;
    uint64_t bytes = 0;
    uint64_t uncharged = 0;  // of the bytes
  };

  using Clock = std::chrono::steady_clock;
  // What cannot be watched counts for this long after the daemon has let go of it.
  static constexpr std::chrono::seconds kUnwatched{60};

  // `notices` false: as where the kernel does not tell (no inotify, no /proc, none of it for memfds).
  explicit LingeringMemory(bool notices = true, std::function<Clock::time_point()> now = Clock::now);

  // `charge` (nullptr: none) lasts until nobody has the memfd any more. The token says that the daemon has
  // it. If the memfd cannot be watched, the charge lasts for kUnwatched after the token: neither for ever,
  // nor may somebody who keeps such memory get more at once. The first time, the log says so.
  std::shared_ptr<void> until_gone(int memfd, uint32_t uid, uint64_t bytes, std::shared_ptr<void> charge);

  // Gives back the charges of what is gone by now. At most one system call more than there are 500 of it.
  void collect();
  Kept kept(uint32_t uid) const;
  bool watches() const { return notices_.valid(); }

 private:
  struct Piece {
    uint32_t uid = 0;
    uint64_t bytes = 0;
    std::shared_ptr<void> charge;
    bool kept = false;
  };
  using Pieces = std::map<int, Piece>;  // by watch; below 0: not watched

  int watch(int memfd) const;
  bool kernel_tells() const;
  void let_go(int piece);
  // Under the lock.
  int unwatched(int error);
  void collect_notices(Pieces* gone);
  // Under the lock.
  void count(const Piece& piece, bool more);
  void take(Pieces::iterator piece, Pieces* gone);
  void take_ended(Pieces* gone);

  wire::UniqueFd notices_;
  int no_notices_ = 0;  // errno of why there are none; 0: the kernel does not tell of memfds
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  bool said_ = false;
  int last_unwatched_ = 0;
  std::deque<std::pair<Clock::time_point, int>> expiries_;  // of unwatched pieces that were let go of
  Pieces pieces_;
  std::map<uint32_t, Kept> kept_;
};

}  // namespace gradwire::control
