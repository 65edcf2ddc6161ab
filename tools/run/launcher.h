// `gradwire run`: daemons, then one process per rank, then a table.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/run/daemons.h"
#include "tools/run/process.h"
#include "tools/run/relay.h"

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

// What rank `rank` of the run is told by its environment.
struct RankPlace {
  uint32_t rank = 0, world = 1, local_rank = 0, local_ranks = 1, node = 0;
  std::string socket, rendezvous, job, run_id;
  uint16_t master_port = 0;
  std::string library, python;  // empty: not found, nothing is set
};
Environment rank_environment(Environment base, const RankPlace& place);

class Launcher {
 public:
  Launcher(const RunOptions& options, std::string folder);

  // Everything from the first daemon to the last; the exit code of `gradwire run`.
  int run();

 private:
  struct Rank {
    uint32_t number;
    Process process;
    LineRelay out, err;
    bool ended_by_us = false;
  };

  Status start_daemons();
  Status wait_until_ready();
  Status start_ranks();
  void watch_ranks();
  void poll_outputs(int timeout_ms);
  void take_signals();
  void look_for_ends();
  void fail(const std::string& what);
  void act_on_deadlines();
  void signal_ranks(int number);
  bool ranks_running() const;
  void wait_until_jobs_ended();
  void report();
  int final_code() const;

  const RunOptions& options_;
  std::string folder_;
  std::string key_file_;
  DaemonOptions daemon_options_;
  std::vector<Daemon> daemons_;
  std::vector<bool> daemon_died_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  UniqueFd signals_;
  int interrupted_ = 0;  // number of the first signal
  bool output_gone_ = false;
  bool failed_ = false;
  int own_failure_ = 0;  // an exit code of ours that no rank has
  int stage_ = 0;        // 0 running, 1 SIGTERM was sent, 2 SIGKILL was sent
  SteadyTime next_stage_ = SteadyTime::max();
};

}  // namespace gradwire::tools
