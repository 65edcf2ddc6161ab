#include "transport/ucx/port_guard.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "transport/ucx/port_filter.h"

namespace gradwire::transport::ucx_internal {
namespace {

int option(int socket, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  return ::getsockopt(socket, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

// Calls `visit(descriptor, listens)` for every TCP socket of the process.
template <typename Visit>
Status for_each_tcp_socket(Visit visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  if (folder == nullptr) {
    return {Code::kUnsupported, std::string("cannot look for UCX's ports: /proc/self/fd: ") +
                                    std::strerror(errno) + "; mount /proc"};
  }
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name(entry->d_name);
    int fd = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), fd).ec != std::errc()) {
      continue;
    }
    const int domain = option(fd, SO_DOMAIN);
    if ((domain == AF_INET || domain == AF_INET6) && option(fd, SO_PROTOCOL) == IPPROTO_TCP) {
      visit(fd, option(fd, SO_ACCEPTCONN) == 1);
    }
  }
  return {};
}

ino_t inode_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

// Port and address of one end of a socket; port 0: there is none.
std::pair<uint16_t, NumericAddress> end_of(int fd, NameOf name_of) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (name_of(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return {};
  }
  char text[INET6_ADDRSTRLEN] = "";
  uint16_t port = 0;
  if (storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    port = ntohs(v4->sin_port);
  } else if (storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    port = ntohs(v6->sin6_port);
  }
  const Result<NumericAddress> address = parse_address(text);
  return address.ok() ? std::pair(port, *address) : std::pair<uint16_t, NumericAddress>();
}

// Ends the connections to `listeners` from elsewhere than `hosts`.
Status end_strangers(const std::vector<int>& listeners, const std::vector<NumericAddress>& hosts) {
  std::set<uint16_t> ports;
  for (const int listener : listeners) {
    ports.insert(end_of(listener, &::getsockname).first);
  }
  return for_each_tcp_socket([&](int fd, bool listens) {
    if (listens || !ports.contains(end_of(fd, &::getsockname).first)) {
      return;
    }
    const auto [port, address] = end_of(fd, &::getpeername);
    if (port != 0 && std::ranges::find(hosts, address) == hosts.end()) {
      ::shutdown(fd, SHUT_RDWR);
    }
  });
}

}  // namespace

Result<std::set<ino_t>> PortGuard::listening() {
  std::set<ino_t> inodes;
  GRADWIRE_RETURN_IF_ERROR(for_each_tcp_socket([&](int fd, bool listens) {
    if (listens) {
      inodes.insert(inode_of(fd));
    }
  }));
  return inodes;
}

Status PortGuard::adopt(const std::set<ino_t>& before) {
  std::set<ino_t> known = before;
  int failure = 0;
  GRADWIRE_RETURN_IF_ERROR(for_each_tcp_socket([&](int fd, bool listens) {
    if (!listens || !known.insert(inode_of(fd)).second) {
      return;
    }
    const int ours = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (ours < 0) {
      failure = errno;
    } else {
      sockets_.push_back(ours);
    }
  }));
  if (failure != 0) {
    return {Code::kResourceExhausted, std::string("cannot guard UCX's port: ") + std::strerror(failure) +
                                          "; raise the limit of open files (ulimit -n)"};
  }
  return {};
}

Status PortGuard::admit(std::span<const std::string> hosts) {
  std::vector<NumericAddress> addresses;
  for (const std::string& host : hosts) {
    const Result<NumericAddress> address = parse_address(host);
    GRADWIRE_RETURN_IF_ERROR(address.status().with_context("cannot admit a host"));
    addresses.push_back(*address);
  }
  Result<std::vector<sock_filter>> filter = admission_filter(addresses);
  GRADWIRE_RETURN_IF_ERROR(filter.status());
  const sock_fprog program{static_cast<unsigned short>(filter->size()), filter->data()};
  for (const int socket : sockets_) {
    if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0) {
      continue;
    }
    const int error = errno;
    if (error == ENOMEM) {
      return {Code::kResourceExhausted,
              "a filter for " + std::to_string(hosts.size()) +
                  " addresses of other nodes is too large for this system; raise net.core.optmem_max"};
    }
    return {Code::kUnsupported,
            std::string("cannot keep strangers away from UCX's port: SO_ATTACH_FILTER: ") +
                std::strerror(error) +
                (error == EPERM ? " (give the daemon CAP_NET_ADMIN, as its unit does)" : "")};
  }
  if (!admitted_) {
    admitted_ = true;
    GRADWIRE_RETURN_IF_ERROR(end_strangers(sockets_, addresses));
  }
  return {};
}

void PortGuard::release() {
  for (const int socket : sockets_) {
    ::close(socket);
  }
  sockets_.clear();
}

}  // namespace gradwire::transport::ucx_internal
