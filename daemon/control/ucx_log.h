// UCX's own messages as events of the daemon's log.
#pragma once

namespace gradwire::control {

// Warnings and errors go to the log, whose lines nobody waits for: UCX itself writes them to standard error
// on the engine's thread. Nothing changes where the user sends them elsewhere (UCX_LOG_FILE).
void take_ucx_log();

}  // namespace gradwire::control
