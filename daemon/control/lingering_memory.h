// Memory that trainers were given is memory until they, too, have let go of it, however long ago the daemon
// has: it stays charged to its user until then.
//
// The kernel tells when an inode has nobody any more (inotify: IN_IGNORED), whatever held it: descriptors,
// also O_PATH or on their way in a socket, or mappings. Nothing runs meanwhile; who wants to know collects.
// Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

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

  // Where the kernel does not tell (no inotify, no /proc, none of it for memfds), nothing is ever kept.
  LingeringMemory();

  // `charge` (nullptr: none) lasts until nobody has the memfd any more. The token says that the daemon has
  // it. If the memfd cannot be watched, the charge is the token and lasts only as long.
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
  using Pieces = std::map<int, Piece>;  // by watch

  int watch(int memfd) const;
  bool kernel_tells() const;
  void let_go(int watch);
  // Under the lock.
  void count(const Piece& piece, bool more);
  void take(Pieces::iterator piece, Pieces* gone);
  void take_unwatched(Pieces* gone);

  wire::UniqueFd notices_;
  mutable std::mutex mutex_;
  Pieces pieces_;
  std::map<uint32_t, Kept> kept_;
};

}  // namespace gradwire::control
