// What UCX offers on this host, and whether the options ask for something that it does not: UCX itself only
// warns, and goes on with what is left.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "config/base/result.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::transport::ucx_internal {

struct Inventory {
  std::set<std::string> transports;                           // "tcp", "rc_verbs"; those that have a device
  std::set<std::pair<std::string, std::string>> net_devices;  // device, transport
  std::set<std::string> aliases;                              // names for groups of them, known to UCX
  std::set<std::string> settings;                             // names without "UCX_"
};

Result<Inventory> read_inventory();

// Checks tls, net_devices and overrides; each only where no UCX_* variable of the user wins over it.
Status check_options(const UcxOptions& options, const Inventory& inventory);

// Whether the user has set UCX_<variable>.
bool set_by_user(const std::string& variable);

}  // namespace gradwire::transport::ucx_internal
