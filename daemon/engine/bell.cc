#include "daemon/engine/bell.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cerrno>

namespace gradwire::engine {

void ring_bell(int fd) {
  const char ring = 1;
  [[maybe_unused]] const ssize_t sent = ::send(fd, &ring, sizeof(ring), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool take_rings(int fd) {
  std::array<char, 4096> bytes;
  iovec where{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &where;
  message.msg_iovlen = 1;
  // Looks first: to take a descriptor out without keeping it is to close it, and the close of the last one
  // may wait (a connection that lingers). A truncated control message says that there is one.
  const ssize_t rung = ::recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);
  if (rung <= 0) {
    return rung < 0 && (errno == EAGAIN || errno == EINTR);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return false;
  }
  // No more than was seen: what follows may have a descriptor.
  [[maybe_unused]] const ssize_t taken = ::recv(fd, bytes.data(), static_cast<size_t>(rung), MSG_DONTWAIT);
  return true;
}

}  // namespace gradwire::engine
