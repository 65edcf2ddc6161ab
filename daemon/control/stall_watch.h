// The coordinator's part in naming who makes an operation wait: asks every node, and puts the answers into
// one sentence.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/control/fields.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

struct StallReport {
  uint32_t bucket = 0;
  uint64_t sequence = 0;
  std::string name;  // of the bucket
  uint64_t waited_ms = 0;
  bool deadline = false;  // operation_timeout has passed
  std::string phase;      // where it is on the node that reports
};
// A phase as `stall` and `misses` carry it: one line, not longer than their readers take.
std::string phase_text(const std::string& phase);
Json stall_document(const StallReport& report);
Result<StallReport> read_stall(const Json& document);

class StallWatch {
 public:
  struct Hooks {
    std::function<void(uint32_t node, const Json&)> send;
    std::function<std::string(const std::vector<uint32_t>& ranks)> places;  // "rank 3 (node b), ..."
    std::function<std::string(uint32_t node)> node;                         // "node b (ranks 2,3)"
    // Everybody was asked. `deadline`: the epoch must end with this sentence.
    std::function<void(const StallReport& report, const std::string& sentence)> verdict;
  };
  StallWatch(Scheduler& scheduler, Nanoseconds patience, uint32_t nodes, Hooks hooks)
      : scheduler_(scheduler), patience_(patience), nodes_(nodes), hooks_(std::move(hooks)) {}

  void stalled(const StallReport& report);
  // An answer to who_misses. kCorrupt: odd.
  Status misses(uint32_t node, const Json& document, uint32_t world);

 private:
  struct Query {
    explicit Query(Scheduler& scheduler) : patience(scheduler) {}
    StallReport report;
    std::set<uint32_t> unanswered;           // nodes
    std::map<uint32_t, std::string> phases;  // by node
    std::vector<uint32_t> missing;           // ranks
    Timer patience;
  };
  std::string phases(const Query& query) const;
  void finish(uint64_t id);

  Scheduler& scheduler_;
  Nanoseconds patience_;
  uint32_t nodes_;
  Hooks hooks_;
  uint64_t last_query_ = 0;
  std::map<uint64_t, std::unique_ptr<Query>> queries_;
};

}  // namespace gradwire::control
