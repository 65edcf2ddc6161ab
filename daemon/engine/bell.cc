#include "daemon/engine/bell.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <thread>

namespace gradwire::engine {

// Urgent bytes stay in line: out of it, take_rings() would not see what comes with them.
void open_bell(int fd) {
  const int on = 1;
  [[maybe_unused]] const int set = ::setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
}

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

void close_bell(int fd) {
  ::shutdown(fd, SHUT_RDWR);  // nothing is added any more
  take_rings(fd);
  int left = 0;
  if (::ioctl(fd, FIONREAD, &left) != 0 || left == 0) {
    ::close(fd);
    return;
  }
  try {
    std::thread([fd] { ::close(fd); }).detach();
  } catch (const std::system_error&) {
    // No thread is to be had: a descriptor that leaks is better than a daemon that waits.
  }
}

}  // namespace gradwire::engine
