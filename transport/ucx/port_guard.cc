#include "transport/ucx/port_guard.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "transport/ucx/accept_door.h"
#include "transport/ucx/numeric_address.h"

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

using NameOf = int (*)(int, sockaddr*, socklen_t*);

// One end of a socket; port 0: there is none.
Endpoint end_of(int fd, NameOf name_of) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  return name_of(fd, reinterpret_cast<sockaddr*>(&storage), &size) == 0 ? endpoint_of(storage) : Endpoint{};
}

// Ends the connections to `ports` from elsewhere than `hosts`.
Status end_strangers(const std::set<uint16_t>& ports, const std::vector<NumericAddress>& hosts) {
  return for_each_tcp_socket([&](int fd, bool listens) {
    if (listens || !ports.contains(end_of(fd, &::getsockname).port)) {
      return;
    }
    const Endpoint other = end_of(fd, &::getpeername);
    if (other.port != 0 && std::ranges::find(hosts, other.host) == hosts.end()) {
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
  if (!door_is_in_place()) {
    return {Code::kInternal,
            "UCX's port cannot be guarded: this program does not export gradwire's accept(); link it so that "
            "its libraries find it (-Wl,--export-dynamic)"};
  }
  std::set<ino_t> known = before;
  return for_each_tcp_socket([&](int fd, bool listens) {
    const ino_t inode = inode_of(fd);
    if (listens && known.insert(inode).second) {
      listeners_.push_back({inode, end_of(fd, &::getsockname).port});
    }
  });
}

Status PortGuard::admit(std::span<const std::string> hosts) {
  std::vector<NumericAddress> addresses;
  for (const std::string& host : hosts) {
    const Result<NumericAddress> address = parse_address(host);
    GRADWIRE_RETURN_IF_ERROR(address.status().with_context("cannot admit a host"));
    addresses.push_back(*address);
  }
  std::set<uint16_t> ports;
  for (const Listener& listener : listeners_) {
    admit_at_door(listener.inode, addresses);
    ports.insert(listener.port);
  }
  return std::exchange(admitted_, true) ? Status() : end_strangers(ports, addresses);
}

void PortGuard::release() {
  for (const Listener& listener : listeners_) {
    leave_door_open(listener.inode);
  }
  listeners_.clear();
}

}  // namespace gradwire::transport::ucx_internal
