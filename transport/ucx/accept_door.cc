#include "transport/ucx/accept_door.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

namespace gradwire::transport::ucx_internal {
namespace {

// Of one call, which then says that nobody is there: who calls in a storm of strangers has other work, too.
constexpr int kMostStrangers = 64;

struct Doors {
  std::mutex mutex;
  std::map<ino_t, std::vector<NumericAddress>> admitted;  // sorted
};

Doors& doors() {
  static auto* const all = new Doors();  // never freed: UCX's threads may outlive main()
  return *all;
}

bool is_guarded(ino_t socket) {
  const std::lock_guard lock(doors().mutex);
  return doors().admitted.contains(socket);
}

bool is_admitted(ino_t socket, const sockaddr_storage& from) {
  const std::lock_guard lock(doors().mutex);
  const auto door = doors().admitted.find(socket);
  return door == doors().admitted.end() || std::ranges::binary_search(door->second, endpoint_of(from).host);
}

int system_accept(int fd, sockaddr* address, socklen_t* size, int flags) {
  return static_cast<int>(::syscall(SYS_accept4, fd, address, size, flags));
}

int accept_at_door(int fd, sockaddr* address, socklen_t* size, int flags) {
  const ino_t socket = inode_of(fd);
  if (!is_guarded(socket)) {
    return system_accept(fd, address, size, flags);
  }
  for (int strangers = 0; strangers < kMostStrangers; ++strangers) {
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    const int connection = system_accept(fd, reinterpret_cast<sockaddr*>(&from), &length, flags);
    if (connection < 0) {
      return connection;
    }
    if (is_admitted(socket, from)) {
      if (address != nullptr && size != nullptr) {
        std::memcpy(address, &from, std::min(*size, length));
        *size = length;
      }
      return connection;
    }
    ::close(connection);
  }
  errno = EAGAIN;
  return -1;
}

}  // namespace

ino_t inode_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

void admit_at_door(ino_t socket, const std::vector<NumericAddress>& hosts) {
  std::vector<NumericAddress> sorted = hosts;
  std::ranges::sort(sorted);
  const std::lock_guard lock(doors().mutex);
  doors().admitted[socket] = std::move(sorted);
}

void leave_door_open(ino_t socket) {
  const std::lock_guard lock(doors().mutex);
  doors().admitted.erase(socket);
}

bool door_is_in_place() {
  return ::dlsym(RTLD_DEFAULT, "accept") == reinterpret_cast<void*>(&::accept) &&
         ::dlsym(RTLD_DEFAULT, "accept4") == reinterpret_cast<void*>(&::accept4);
}

}  // namespace gradwire::transport::ucx_internal

extern "C" {

[[gnu::visibility("default")]] int accept(int fd, sockaddr* address, socklen_t* size) {
  return gradwire::transport::ucx_internal::accept_at_door(fd, address, size, 0);
}

[[gnu::visibility("default")]] int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return gradwire::transport::ucx_internal::accept_at_door(fd, address, size, flags);
}

}  // extern "C"
