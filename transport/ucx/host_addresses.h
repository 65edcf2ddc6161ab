// This host's network interfaces and addresses, as UCX and the port guard need them. All functions ask the
// system anew and are thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::transport::ucx_internal {

// Numeric addresses from which messages of the interfaces in `devices` (as UCX_NET_DEVICES) may come: their
// own, and those of interfaces in the same networks, since the routing table may prefer those. All interfaces
// that are up where `devices` is empty or names none. Without link-local addresses.
std::vector<std::string> hosts_of_devices(std::string_view devices);

// `hosts` without this host's own addresses, unless all of `own` (IPv4, or IPv6 where there is no IPv4) are
// among them: only a daemon on this host has them all. So a far node that names 127.0.0.1 or the address of
// a bridge that every host has lets nobody in who is on this host.
std::vector<std::string> without_own_unless_complete(std::span<const std::string> hosts,
                                                     std::span<const std::string> own);

}  // namespace gradwire::transport::ucx_internal
