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

LingeringMemory::LingeringMemory() : notices_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  if (notices_.valid() && !kernel_tells()) {
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
  const int watched = notices_.valid() ? watch(memfd) : -1;
  if (watched < 0 || pieces_.contains(watched)) {
    if (watched < 0 && notices_.valid()) {
      log_warning("memory_not_watched", {{"cause", std::strerror(errno)},
                                         {"remedy", "raise fs.inotify.max_user_watches"},
                                         {"effect", "trainers that keep it are not charged for it"}});
    }
    return charge;
  }
  pieces_[watched] = Piece{uid, bytes, std::move(charge)};
  return {this, [weak = weak_from_this(), watched](void*) {
            if (const auto self = weak.lock()) {
              self->let_go(watched);
            }
          }};
}

void LingeringMemory::let_go(int watch) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(watch);
  if (found != pieces_.end()) {
    found->second.kept = true;
    count(found->second, true);
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
  if (!notices_.valid()) {
    return;
  }
  Pieces gone;  // given back behind the lock
  const std::lock_guard lock(mutex_);
  bool missed = false;
  read_notices(notices_.get(), [&](const inotify_event& notice) {
    missed = missed || (notice.mask & IN_Q_OVERFLOW) != 0;
    const auto found = pieces_.find(notice.wd);
    if ((notice.mask & IN_IGNORED) != 0 && found != pieces_.end()) {
      take(found, &gone);
    }
  });
  if (missed) {
    take_unwatched(&gone);
  }
}

// There were more notices than the kernel keeps; it lists the watches that live.
void LingeringMemory::take_unwatched(Pieces* gone) {
  std::ifstream list("/proc/self/fdinfo/" + std::to_string(notices_.get()));
  std::set<int> alive;
  bool complete = false;
  for (std::string word; list >> word;) {
    complete = true;
    if (word.starts_with("wd:")) {
      alive.insert(static_cast<int>(std::strtoul(word.c_str() + 3, nullptr, 16)));
    }
  }
  for (auto piece = pieces_.begin(); complete && piece != pieces_.end();) {
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
