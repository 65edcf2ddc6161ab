// Reaching the daemon's socket, and saying why it cannot be reached.
#pragma once

#include <cstdint>
#include <string>

#include "client/include/gradwire/gradwire.h"
#include "client/src/clock.h"
#include "client/wire/unique_fd.h"

namespace gradwire::client {

// How long a caller is ready to wait for a daemon that is not there yet, over several attempts.
class Patience {
 public:
  explicit Patience(int64_t wait_ms) : start_ns_(now_ns()), until_(Deadline::after_ms(wait_ms)) {}

  bool over() const { return until_.passed(); }
  int64_t waited_ms() const { return (now_ns() - start_ns_) / 1'000'000; }
  // Sleeps 10 ms at first, then twice as long each time up to 500 ms, never beyond the end.
  void pause();

 private:
  int64_t start_ns_;
  Deadline until_;
  int pause_ms_ = 10;
};

// One non-blocking attempt; 0 or errno. The path fits into a sockaddr_un.
int try_connect(const std::string& path, wire::UniqueFd* socket);

// Connects to the daemon's socket. What may pass by itself is tried again, silently, while there is patience.
// A full queue of connections is given `queue_ms` in any case.
gw_status reach(const std::string& path, Patience* patience, int64_t queue_ms, wire::UniqueFd* socket);

}  // namespace gradwire::client
