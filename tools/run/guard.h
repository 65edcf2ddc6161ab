// Cleans up whatever happens: the work runs in a child process, and this process only waits for it.
//
// Either of the two may die in any way. The guard passes signals on; when the worker has gone, it kills what
// the worker left (adopted as a subreaper) and removes the folder. When the guard is killed, the worker gets
// SIGTERM and does the same.
#pragma once

#include <functional>
#include <string>

namespace gradwire::tools {

// Creates the folder (0700) under $TMPDIR, calls `work(folder)` in a process of its own, and returns the exit
// code that `work` returned; 125 if the folder cannot be made or the worker died. `keep`: the folder stays.
// The worker starts with SIGINT, SIGTERM, SIGHUP and SIGCHLD blocked and takes them from a signalfd.
int run_guarded(bool keep, const std::function<int(const std::string& folder)>& work);

inline constexpr int kExitRunFailed = 125;

}  // namespace gradwire::tools
