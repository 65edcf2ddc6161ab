// Memory that a trainer and its daemon share: sealed memfds, mapped here before they are passed on, and the
// bell of a session.
//
// Every page exists when a function here returns: lack of memory is an error (kResourceExhausted), never a
// SIGBUS later. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "client/layout/session_layout.h"
#include "client/wire/unique_fd.h"
#include "config/base/result.h"
#include "daemon/control/socket_reaper.h"

namespace gradwire::control {

enum class Access {
  kBoth,      // the trainer may map it writable; its size is sealed
  kReadOnly,  // the trainer cannot map it writable
};

class SharedMemory {
 public:
  // Zero bytes give a page. `name` is for /proc/PID/maps.
  static Result<std::shared_ptr<SharedMemory>> create(const std::string& name, uint64_t bytes, Access access);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }  // of the memfd: whole pages
  // To pass on; nullptr after forget_fd(). The mapping needs no descriptor.
  const std::shared_ptr<wire::UniqueFd>& fd() const { return fd_; }
  void forget_fd() { fd_.reset(); }
  // Is dropped with the memory, after it.
  void keep(std::shared_ptr<void> token) { token_ = std::move(token); }
  std::weak_ptr<void> token() const { return token_; }

 private:
  SharedMemory(std::shared_ptr<wire::UniqueFd> fd, void* data, uint64_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

  std::shared_ptr<void> token_;
  std::shared_ptr<wire::UniqueFd> fd_;
  void* data_;
  uint64_t bytes_;
};

// From now on nobody can pass descriptors through the other end; trainers have none to pass. Linux 6.16:
// older kernels know no such option, and there plain_bytes.h and socket_reaper.h keep what comes from
// hurting.
void refuse_descriptors(int socket);

// A session's rings and its bell (session_layout.h), ready for both sides.
struct SessionMemory {
  SessionMemory() = default;
  ~SessionMemory();  // never waits for what the trainer left in the bell: the reaper does
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  std::shared_ptr<SharedMemory> memory;
  wire::UniqueFd daemon_bell;
  std::shared_ptr<SocketReaper> reaper;
  uint32_t uid = 0;  // the trainer's
  // To pass on, and then to be dropped: the daemon hears of the trainer's end only if it holds no copy.
  std::shared_ptr<wire::UniqueFd> trainer_bell;

  layout::SessionHeader* header() const { return static_cast<layout::SessionHeader*>(memory->data()); }
  int bell() const { return daemon_bell.get(); }  // the daemon's end; non-blocking
};
Result<std::shared_ptr<SessionMemory>> make_session_memory(uint32_t rank, uint32_t world, uint64_t generation,
                                                           std::shared_ptr<SocketReaper> reaper,
                                                           uint32_t uid);

// Whole pages, at least one.
uint64_t page_rounded(uint64_t bytes);

}  // namespace gradwire::control
