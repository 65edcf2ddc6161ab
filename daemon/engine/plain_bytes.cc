#include "daemon/engine/plain_bytes.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>

namespace gradwire::engine {
namespace {

Taken none(ssize_t result) {
  const bool later = result < 0 && (errno == EAGAIN || errno == EINTR);
  return {later ? Taken::Kind::kNothing : Taken::Kind::kEnd, 0};
}

}  // namespace

void keep_urgent_in_line(int fd) {
  const int on = 1;
  [[maybe_unused]] const int set = ::setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
}

Taken take_plain(int fd, std::span<char> into) {
  iovec where{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &where;
  message.msg_iovlen = 1;
  // Looks first. A truncated control message says that there is a descriptor.
  const ssize_t seen = ::recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);
  if (seen <= 0) {
    return none(seen);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return {Taken::Kind::kDescriptors, 0};
  }
  // No more than was seen: what follows may have a descriptor.
  const ssize_t taken = ::recv(fd, into.data(), static_cast<size_t>(seen), MSG_DONTWAIT);
  return taken > 0 ? Taken{Taken::Kind::kBytes, static_cast<size_t>(taken)} : none(taken);
}

}  // namespace gradwire::engine
