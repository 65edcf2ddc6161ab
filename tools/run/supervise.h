// The ranks of a run from their start to their end: output, signals, deaths, deadlines, the exit code.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/run/daemons.h"
#include "tools/run/process.h"
#include "tools/run/relay.h"

namespace gradwire::tools {

// A line on standard error in the name of `gradwire run`.
void say(const std::string& text);

class Supervisor {
 public:
  // `daemons` are watched, too; they stay where they are. SIGINT, SIGTERM, SIGHUP and SIGCHLD are blocked.
  Supervisor(double grace_seconds, std::vector<Daemon>* daemons);

  void add(uint32_t number, const Process& process, UniqueFd out, UniqueFd err);
  void take_signals();
  bool interrupted() const { return interrupted_ != 0; }
  // The run cannot go on: the ranks that were started are killed. `code`: the least exit code of the run.
  void give_up(int code);
  // Until all ranks have ended.
  void watch();
  bool any_ranks() const { return !ranks_.empty(); }
  bool failed() const { return failed_; }
  int final_code() const;

 private:
  struct Rank {
    uint32_t number;
    Process process;
    LineRelay out, err;
    bool ended_by_us = false;
  };

  void poll_outputs(int timeout_ms);
  void look_for_ends();
  void fail(const std::string& what);
  void act_on_deadlines();
  void signal_ranks(int number);
  bool ranks_running() const;

  const double grace_seconds_;
  std::vector<Daemon>* const daemons_;
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
