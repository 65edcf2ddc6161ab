// This host's network interfaces and addresses, as UCX and the port guard need them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/ucx/port_filter.h"

namespace gradwire::transport::ucx_internal {

struct InterfaceAddress {
  std::string interface;
  std::string text;
  NumericAddress address;
  uint32_t mask = 0;  // IPv4
  bool up = false;
};

// As they are at the moment of the construction, which asks the system (once, and thread-safely). Without
// link-local addresses.
class HostAddresses {
 public:
  HostAddresses();
  const std::vector<InterfaceAddress>& all() const { return all_; }

  // Numeric addresses from which messages of the interfaces in `devices` (as UCX_NET_DEVICES) may come: their
  // own, and those of interfaces in the same networks, since the routing table may prefer those. All
  // interfaces that are up where `devices` is empty or names none.
  std::vector<std::string> of_devices(std::string_view devices) const;

  // `hosts` without this host's own addresses, unless all of `own` (IPv4, or IPv6 where there is no IPv4) are
  // among them: only a daemon on this host has them all. So a far node that names 127.0.0.1 or the address of
  // a bridge that every host has lets nobody in who is on this host. `hosts` may be the union of several
  // nodes' addresses, and far ones that name all of `own` between them count as one on this host.
  std::vector<std::string> without_own_unless_complete(std::span<const std::string> hosts,
                                                       std::span<const std::string> own) const;

 private:
  std::vector<InterfaceAddress> all_;
};

}  // namespace gradwire::transport::ucx_internal
