// A job that goes on while somebody misbehaves, and finds out whether its results are right.
#pragma once

#include <string>
#include <vector>

#include "tests/control/processes.h"

namespace gradwire::control::testing {

class GoodJob {
 public:
  // One rank a socket; runs until finish(). `stop_file` is its own.
  GoodJob(const std::vector<std::string>& sockets, const std::string& rendezvous, std::string stop_file);
  ~GoodJob();

  // True once it has completed operations, or more of them than before.
  bool advances();
  // Ends the job in order; a failure is told in words, success in none.
  std::string finish();

 private:
  std::string stop_file_;
  std::vector<Trainer> ranks_;
};

}  // namespace gradwire::control::testing
