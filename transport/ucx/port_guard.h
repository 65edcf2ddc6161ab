// Keeps strangers away from the TCP ports that UCX opens in this process. UCX 1.13 trusts whoever reaches
// them: a few malformed bytes end the process. The connections of everybody who is not admitted are closed
// before UCX sees them (accept_door.h). No privileges are needed.
//
// UCX gives a connection up that is closed like this: admit before connecting. Used by one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "config/base/result.h"

namespace gradwire::transport::ucx_internal {

class PortGuard {
 public:
  PortGuard() = default;
  ~PortGuard() { release(); }
  PortGuard(const PortGuard&) = delete;
  PortGuard& operator=(const PortGuard&) = delete;

  // Inodes of the TCP sockets of this process that listen. kUnsupported: there is no /proc.
  static Result<std::set<ino_t>> listening();
  // Guards all that listen by now except `before`. Nobody is turned away yet. kInternal: UCX does not accept
  // through this process's accept().
  Status adopt(const std::set<ino_t>& before);
  // Of connections that are accepted from here on only those from these numeric addresses get through; the
  // first call also ends those that others opened before. kInvalidArgument: not a numeric address; everything
  // stays as it was.
  Status admit(std::span<const std::string> hosts);
  // Lets go of the sockets. Before UCX closes them.
  void release();
  size_t ports() const { return listeners_.size(); }

 private:
  struct Listener {
    ino_t inode = 0;
    uint16_t port = 0;
  };
  std::vector<Listener> listeners_;
  bool admitted_ = false;
};

}  // namespace gradwire::transport::ucx_internal
