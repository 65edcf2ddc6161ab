// Who this process is: from the caller, from GRADWIRE_*, from the launcher's variables.
#pragma once

#include <functional>
#include <string>

#include "client/include/gradwire/gradwire.h"

namespace gradwire::client {

inline constexpr int32_t kMaxWorld = 65536;
inline constexpr size_t kMaxIdentityBytes = 127;  // of job and run_id
inline constexpr const char* kDefaultSocket = "/run/gradwire/gradwired.sock";

struct Identity {
  std::string job, run_id, rendezvous, socket;
  int32_t rank = -1;
  int32_t world = -1;
  int64_t timeout_ms = 0;  // 0: the daemon's
  int64_t wait_ms = 0;     // for a daemon that is not there yet
  bool fresh = false;
  bool leave_at_exit = false;
};

using Lookup = std::function<const char*(const char*)>;  // getenv

// Fills what `options` (complete, see read_options) leaves open. One launcher's variables are never mixed
// with another's: the first that gives both rank and world is believed. MASTER_ADDR on the loopback, or a
// launcher that has all ranks on this node, means a job of this node only (empty rendezvous).
gw_status resolve_identity(const gw_join_options& options, const Lookup& lookup, Identity* identity);

// Copies a caller's struct of any size into this version's, with defaults for what is missing.
gw_status read_options(const gw_join_options* given, gw_join_options* options);

}  // namespace gradwire::client
