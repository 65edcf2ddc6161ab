// What a client that means harm sends to a daemon: the last copy of a connection that lingers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

namespace gradwire {

// A connection that lingers: whoever closes it last waits for `seconds`, because its other end does not read.
class Lingering {
 public:
  explicit Lingering(int seconds) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_, generic, size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::getsockname(listener_, generic, &size), 0);
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, generic, size), 0);
    accepted_ = ::accept(listener_, nullptr, nullptr);
    const linger lingers{1, seconds};
    EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &lingers, sizeof(lingers)), 0);
    std::array<char, 65'536> bytes{};
    while (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }
  void end() {  // with unread data: a reset, which ends the lingering
    ::close(std::exchange(accepted_, -1));
    ::close(std::exchange(listener_, -1));
  }
  ~Lingering() {
    end();
    ::close(fd);
  }
  int fd = -1;

 private:
  int listener_ = -1, accepted_ = -1;
};

// The connection's only descriptor goes into the socket, with an ordinary or an urgent byte.
inline void put_into(int socket, Lingering& connection, int flags) {
  char byte = 1;
  iovec where{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &where;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &connection.fd, sizeof(int));
  [[maybe_unused]] const ssize_t sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  ::close(std::exchange(connection.fd, -1));
}

}  // namespace gradwire
