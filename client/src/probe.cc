#include "client/src/probe.h"

#include <sys/socket.h>

#include <cerrno>

#include "client/src/reach.h"
#include "client/wire/framing.h"

namespace gradwire::client {

uint64_t Probe::look(int64_t now_ns) {
  if (next_ns_ == 0) {
    next_ns_ = now_ns + interval_ns_;
  }
  if (socket_.valid()) {
    char bytes[64];
    const ssize_t received = ::recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    // Whatever it says, or that it hangs up: it moves.
    if (received >= 0 || (errno != EAGAIN && errno != EINTR)) {
      ++signs_;
      socket_.reset();
    }
  } else if (now_ns >= next_ns_) {
    next_ns_ = now_ns + interval_ns_;
    ask();
  }
  return signs_;
}

void Probe::ask() {
  if (try_connect(path_, &socket_) != 0) {
    socket_.reset();
    return;
  }
  const auto sent = wire::send_some(socket_.get(), wire::encode_frame(R"({"type":"ping","id":1})"));
  if (!sent.ok()) {
    ++signs_;  // closed already: it moves
    socket_.reset();
  }
}

}  // namespace gradwire::client
