// Keeps strangers away from the TCP ports that UCX opens in this process. UCX 1.13 trusts whoever reaches
// them: a few malformed bytes end the process. A filter on the listening socket drops the packets of
// everybody who is not admitted, their first one included, so that they see a host that does not answer;
// connections inherit the filter of the moment in which they were opened. Kernels from 2026 on want
// CAP_NET_ADMIN for it.
//
// A dropped first packet is sent again by the other host's kernel after a second: admit before connecting.
// Used by one thread.
#pragma once

#include <sys/types.h>

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
  // Guards all that listen by now except `before`. Nothing is dropped yet.
  Status adopt(const std::set<ino_t>& before);
  // Only these numeric addresses get through to connections that are opened from here on; the first call also
  // ends those that others opened before. On failure everything stays as it was.
  Status admit(std::span<const std::string> hosts);
  // Lets go of the sockets, which stay as they are. Before UCX closes them.
  void release();
  size_t ports() const { return sockets_.size(); }

 private:
  std::vector<int> sockets_;  // descriptors of our own, so that no other socket takes their numbers
  bool admitted_ = false;
};

}  // namespace gradwire::transport::ucx_internal
