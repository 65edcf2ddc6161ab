#include "daemon/engine/bell.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <array>

#include "daemon/engine/plain_bytes.h"

namespace gradwire::engine {

void ring_bell(int fd) {
  const char ring = 1;
  [[maybe_unused]] const ssize_t sent = ::send(fd, &ring, sizeof(ring), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool take_rings(int fd) {
  std::array<char, 4096> bytes;
  const Taken::Kind kind = take_plain(fd, bytes).kind;
  return kind == Taken::Kind::kBytes || kind == Taken::Kind::kNothing;
}

}  // namespace gradwire::engine
