#include "daemon/control/lingering_memory.h"

#include <sys/inotify.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

constexpr size_t kNotices = 500;  // of one read

// Calls `each` with the notices that are there.
template <typename Each>
void read_notices(int notices, Each each) {
  // Watches on files bear no names: every notice is of this size.
  std::array<inotify_event, kNotices> buffer;
  for (;;) {
    const ssize_t bytes = read(notices, buffer.data(), sizeof(buffer));
    if (bytes < 0 && errno == EINTR) {
      continue;
    }
    const size_t count = bytes <= 0 ? 0 : static_cast<size_t>(bytes) / sizeof(inotify_event);
    for (size_t i = 0; i < count; ++i) {
      each(buffer[i]);
    }
    if (count < kNotices) {
      return;
    }
  }
}

}  // namespace

LingeringMemory::LingeringMemory(bool notices, std::function<Clock::time_point()> now)
    : now_(std::move(now)) {
  if (!notices) {
    return;
  }
  notices_ = wire::UniqueFd(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!notices_.valid()) {
    no_notices_ = errno;
  } else if (!kernel_tells()) {
    notices_.reset();
  }
}

// A kernel that takes the watch and never tells would leave every charge for ever.
bool LingeringMemory::kernel_tells() const {
  wire::UniqueFd memfd(memfd_create("gradwire:watched", MFD_CLOEXEC));
  if (!memfd.valid()) {
    return false;
  }
  const int watched = watch(memfd.get());
  memfd.reset();
  bool told = false;
  read_notices(notices_.get(), [&](const inotify_event& notice) {
    told = told || (notice.wd == watched && (notice.mask & IN_IGNORED) != 0);
  });
  return told;
}

// A memfd never moves: the only notice is that the watch has gone, and with it the last who had the memory.
int LingeringMemory::watch(int memfd) const {
  return inotify_add_watch(notices_.get(), ("/proc/self/fd/" + std::to_string(memfd)).c_str(), IN_MOVE_SELF);
}

std::shared_ptr<void> LingeringMemory::until_gone(int memfd, uint32_t uid, uint64_t bytes,
                                                  std::shared_ptr<void> charge) {
  const std::lock_guard lock(mutex_);
  int piece = notices_.valid() ? watch(memfd) : -1;
  if (piece < 0) {
    piece = unwatched(notices_.valid() ? errno : no_notices_);
  } else if (pieces_.contains(piece)) {
    return charge;
  }
  pieces_[piece] = Piece{uid, bytes, std::move(charge)};
  return {this, [weak = weak_from_this(), piece](void*) {
            if (const auto self = weak.lock()) {
              self->let_go(piece);
            }
          }};
}

int LingeringMemory::unwatched(int error) {
  if (!std::exchange(said_, true)) {
    log_warning(
        "memory_not_watched",
        {{"cause", error == 0 ? "the kernel does not tell of the end of memfds" : std::strerror(error)},
         {"remedy", error == ENOSPC   ? "raise fs.inotify.max_user_watches"
                    : error == EMFILE ? "raise fs.inotify.max_user_instances and the limit of open files"
                                      : "give gradwired inotify and /proc"},
         {"effect", "what trainers are given counts for " + std::to_string(kUnwatched.count()) +
                        " s after its bucket, however long they keep it"}});
  }
  return --last_unwatched_;
}

void LingeringMemory::let_go(int piece) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(piece);
  if (found == pieces_.end()) {
    return;
  }
  found->second.kept = true;
  count(found->second, true);
  if (piece < 0) {
    expiries_.emplace_back(now_() + kUnwatched, piece);
  }
}

void LingeringMemory::count(const Piece& piece, bool more) {
  Kept& kept = kept_[piece.uid];
  const uint64_t uncharged = piece.charge ? 0 : piece.bytes;
  kept.pieces += more ? 1 : -uint64_t{1};
  kept.bytes += more ? piece.bytes : -piece.bytes;
  kept.uncharged += more ? uncharged : -uncharged;
  if (kept.pieces == 0) {
    kept_.erase(piece.uid);
  }
}

void LingeringMemory::take(Pieces::iterator piece, Pieces* gone) {
  if (piece->second.kept) {
    count(piece->second, false);
  }
  gone->insert(pieces_.extract(piece));
}

void LingeringMemory::collect() {
  Pieces gone;  // given back behind the lock
  const std::lock_guard lock(mutex_);
  if (notices_.valid()) {
    collect_notices(&gone);
  }
  while (!expiries_.empty() && expiries_.front().first <= now_()) {
    take(pieces_.find(expiries_.front().second), &gone);
    expiries_.pop_front();
  }
}

void LingeringMemory::collect_notices(Pieces* gone) {
  bool missed = false;
  read_notices(notices_.get(), [&](const inotify_event& notice) {
    missed = missed || (notice.mask & IN_Q_OVERFLOW) != 0;
    const auto found = pieces_.find(notice.wd);
    if ((notice.mask & IN_IGNORED) != 0 && found != pieces_.end()) {
      take(found, gone);
    }
  });
  if (missed) {
    take_ended(gone);
  }
}

// There were more notices than the kernel keeps; it lists the watches that live.
void LingeringMemory::take_ended(Pieces* gone) {
  std::ifstream list("/proc/self/fdinfo/" + std::to_string(notices_.get()));
  std::set<int> alive;
  bool complete = false;
  for (std::string word; list >> word;) {
    complete = true;
    if (word.starts_with("wd:")) {
      alive.insert(static_cast<int>(std::strtoul(word.c_str() + 3, nullptr, 16)));
    }
  }
  for (auto piece = pieces_.lower_bound(0); complete && piece != pieces_.end();) {
    const auto next = std::next(piece);
    if (!alive.contains(piece->first)) {
      take(piece, gone);
    }
    piece = next;
  }
}

LingeringMemory::Kept LingeringMemory::kept(uint32_t uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(uid);
  return found == kept_.end() ? Kept{} : found->second;
}

}  // namespace gradwire::control
