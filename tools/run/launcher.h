// `gradwire run`: daemons, then one process per rank, then a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/run/daemons.h"
#include "tools/run/supervise.h"

namespace gradwire::tools {

struct RunOptions {
  uint32_t nodes = 1;
  uint32_t local_ranks = 1;
  std::string daemon;                 // path of gradwired; empty: found beside this command
  std::vector<std::string> settings;  // KEY=VALUE for every daemon
  std::vector<std::string> command;
  double grace_seconds = 10;  // what the other ranks have after one failed
  bool keep = false;          // leaves folders and logs
};

class Launcher {
 public:
  Launcher(const RunOptions& options, std::string folder);

  // Everything from the first daemon to the last; the exit code of `gradwire run`.
  int run();

 private:
  Status start_daemons();
  Status wait_until_ready();
  Status start_ranks();
  void wait_until_jobs_ended();
  void report();

  const RunOptions& options_;
  std::string folder_;
  std::string key_file_;
  DaemonOptions daemon_options_;
  std::vector<Daemon> daemons_;
  Supervisor supervisor_;
};

}  // namespace gradwire::tools
