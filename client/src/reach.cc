#include "client/src/reach.h"

#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/src/error.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
constexpr const char* kRemedy = "start it with `systemctl start gradwired` or set GRADWIRE_SOCKET";
// Between a daemon's bind and the mode and group of its socket.
constexpr int64_t kPermissionGraceMs = 500;

std::string group_name(gid_t group) {
  char buffer[1024];
  struct group entry {};
  struct group* found = nullptr;
  return ::getgrgid_r(group, &entry, buffer, sizeof(buffer), &found) == 0 && found != nullptr
             ? std::string(found->gr_name)
             : std::to_string(group);
}

bool is_something_else(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode);
}

std::string permission_sentence(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return say("user ", ::geteuid(), " may not look into a directory of this path (", std::strerror(errno),
               "); open it, or set GRADWIRE_SOCKET to a socket that this user may use");
  }
  const std::string group = group_name(info.st_gid);
  return say("user ", ::geteuid(), " may not use the socket, which is for group ", group,
             "; join it (`usermod -a -G ", group,
             " USER`, then log in again) or set GRADWIRE_SOCKET to a socket that this user may use");
}

gw_status refuse(const std::string& path, int error, int64_t waited_ms) {
  const std::string waited = waited_ms > 0 ? say(" (waited ", waited_ms, " ms)") : "";
  const auto unreachable = [&](const auto&... seen) {
    return fail(GW_ERR_UNAVAILABLE, say("no gradwired at ", path, waited, ": ", seen..., "; ", kRemedy));
  };
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return unreachable("there is no such socket");
    case ECONNREFUSED:
    case EPROTOTYPE:
      return unreachable(error == EPROTOTYPE || is_something_else(path)
                             ? "this is not a daemon's socket but something else"
                             : "nobody listens on the socket any more (connection refused)");
    case EAGAIN:
      return fail(GW_ERR_UNAVAILABLE,
                  say("gradwired at ", path, waited,
                      " takes no connections, its queue is full: it stands still or is overloaded; look at "
                      "`gradwire status`, then `systemctl restart gradwired`"));
    case EACCES:
    case EPERM:
      return fail(GW_ERR_PERMISSION, say("no gradwired at ", path, waited, ": ", permission_sentence(path)));
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return fail(GW_ERR_EXHAUSTED,
                  say("this process gets no socket to reach gradwired: ", std::strerror(error)));
    default:
      return unreachable(std::strerror(error));
  }
}

bool may_pass(const std::string& path, int error, const Patience& patience, int64_t queue_ms) {
  switch (error) {
    case EAGAIN:
      return !patience.over() || patience.waited_ms() < queue_ms;
    case ECONNREFUSED:
      return !patience.over() && !is_something_else(path);
    case ENOENT:
    case ENOTDIR:
      return !patience.over();
    case EACCES:
    case EPERM:
      return !patience.over() && patience.waited_ms() < kPermissionGraceMs;
    default:
      return false;
  }
}

}  // namespace

void Patience::pause() {
  const int left = until_.passed() ? pause_ms_ : std::max(1, until_.poll_ms(pause_ms_));
  ::poll(nullptr, 0, left);
  pause_ms_ = std::min(2 * pause_ms_, 500);
}

int try_connect(const std::string& path, wire::UniqueFd* socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), kMaxPath));
  socket->reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket->valid()) {
    return errno;
  }
  while (::connect(socket->get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

gw_status reach(const std::string& path, Patience* patience, int64_t queue_ms, wire::UniqueFd* socket) {
  if (path.empty() || path.size() > kMaxPath) {
    return fail(GW_ERR_INVALID,
                say("the path of gradwired's socket has ", path.size(), " bytes (", excerpt(path, 60),
                    "); 1 to ", kMaxPath, " are possible: set GRADWIRE_SOCKET to a shorter one"));
  }
  bool waited = false;
  for (;;) {
    const int error = try_connect(path, socket);
    if (error == 0) {
      return GW_OK;
    }
    if (!may_pass(path, error, *patience, queue_ms)) {
      socket->reset();
      return refuse(path, error, waited ? patience->waited_ms() : 0);
    }
    waited = true;
    patience->pause();
  }
}

}  // namespace gradwire::client
