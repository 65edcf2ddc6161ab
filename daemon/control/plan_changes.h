// The coordinator's part in changing the plan of a bucket that is in use: all nodes build it, hold the
// bucket's operations back, agree on the one from which it counts, and go on together
// (docs/control-protocol.md, Plans).
//
// A state machine without I/O on one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "daemon/control/plan_document.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

class PlanChanges {
 public:
  struct Hooks {
    std::function<void(uint32_t node, const Json&)> send;
    // Every node has the plan, or all keep the one they had, for this cause.
    std::function<void(uint32_t bucket, const Plan&, const Status&)> over;
  };
  // `patience`: how long operations may be held back for an agreement, from the first node that holds them.
  PlanChanges(Scheduler& scheduler, Nanoseconds patience, uint32_t nodes, Hooks hooks)
      : scheduler_(scheduler), patience_(patience), nodes_(nodes), hooks_(std::move(hooks)) {}

  bool changing(uint32_t bucket) const { return changes_.contains(bucket); }
  bool any() const { return !changes_.empty(); }
  void begin(uint32_t bucket, const Plan& plan);
  // The bucket is gone on some node, so no operation of it begins any more, changed or not.
  void forget(uint32_t bucket);

  // plan_held, plan_failed, plan_changed. Answers to what is over are ignored. kCorrupt: odd.
  Status document(uint32_t node, const std::string& type, const Json& document);

 private:
  struct Change {
    explicit Change(Scheduler& scheduler) : patience(scheduler) {}
    uint64_t number = 0;
    Plan plan;
    std::set<uint32_t> held, changed;  // nodes
    uint64_t first = 0;                // the highest that a node has not begun
    Timer patience;                    // until all hold, from the first on
  };
  void tell(uint32_t bucket, const Change& change, Json document);
  void give_up(uint32_t bucket, const Status& cause);
  void commit(uint32_t bucket, Change& change);

  Scheduler& scheduler_;
  Nanoseconds patience_;
  uint32_t nodes_;
  Hooks hooks_;
  uint64_t last_ = 0;
  std::map<uint32_t, std::unique_ptr<Change>> changes_;  // by bucket
};

}  // namespace gradwire::control
