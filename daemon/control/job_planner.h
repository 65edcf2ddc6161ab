// The coordinator's planner of one job: has the nodes measure, decides how each bucket is reduced, and
// decides anew when later measurements say that another way is faster.
//
// A state machine without I/O on one thread. It decides alone, for all nodes: they hear of the same plan.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "daemon/control/cost_documents.h"
#include "daemon/control/manifest.h"
#include "daemon/control/plan_changes.h"
#include "daemon/control/plan_decision.h"
#include "daemon/control/plan_document.h"

namespace gradwire::control {

class JobPlanner {
 public:
  // How long a bucket waits for measurements, but at most half of operation_timeout; without them it gets
  // what comes first of what is allowed, until they come.
  static constexpr Nanoseconds kPatience = std::chrono::seconds(5);
  // A plan that is in use and allowed changes at most so often, and only for a gain of this factor.
  static constexpr Nanoseconds kSettled = std::chrono::seconds(10);
  static constexpr double kGain = 1.10;

  struct Hooks {
    std::function<void(uint32_t node, const Json&)> send;
    std::function<Json()> policy;                  // for buckets created now
    std::function<config::PlanOptions()> options;  // the same
    std::function<std::string(uint32_t bucket)> label;
  };
  JobPlanner(Scheduler& scheduler, Nanoseconds operation_timeout, uint32_t nodes, uint32_t max_payload,
             Hooks hooks);
  ~JobPlanner() { stop(); }
  JobPlanner(const JobPlanner&) = delete;
  JobPlanner& operator=(const JobPlanner&) = delete;

  // Every node has the job.
  void begin();
  // The policy or the options were read again: buckets in use leave plans that are no longer allowed at once.
  void options_changed();
  // Some node has this bucket no more: its plan does not change any more.
  void destroyed(uint32_t bucket);
  // Ranks leave: nothing is measured and no plan changes any more, and what waits gets its answer.
  void rank_left();
  // The epoch is over.
  void stop();
  // `done` gets the policy and the plan, within kPatience.
  using Planned = std::function<void(const Json& policy, const Plan& plan)>;
  void plan(uint32_t bucket, const Manifest& manifest, Planned done);

  // measured, plan_held, plan_failed, plan_changed. kCorrupt: odd.
  Status document(uint32_t node, const std::string& type, const Json& document);

 private:
  using Policy = std::shared_ptr<const config::CompressionPolicy>;
  struct Bucket {
    Manifest manifest;
    Policy policy;
    Plan plan;
    Nanoseconds not_before{};  // it changes
    bool failed = false;       // to change, and nobody has looked at it since
    bool pinned = false;       // it changes, or did last, because its plan was not allowed any more
  };
  struct Waiting {
    uint32_t bucket = 0;
    Manifest manifest;
    Planned done;
  };

  Policy policy();
  bool decides(const Policy& policy) const;
  bool stale(const config::CompressionPolicy& policy) const;
  std::vector<config::PolicySettings> to_measure(const config::CompressionPolicy& policy) const;
  void measure();
  Status measured(uint32_t node, const Json& document);
  void round_over();
  void answer_waiting();
  void answer(Waiting waiting);
  void watch(uint32_t id, Bucket bucket);
  PlanDecision decision(const Bucket& bucket) const;
  std::optional<planner::NodeCosts> costs_for(const PlanDecision& decision) const;
  void replan();
  void replan_next();
  void try_again();
  void replan(uint32_t id, Bucket& bucket);
  void changed(uint32_t bucket, const Plan& plan, const Status& status);

  Scheduler& scheduler_;
  Nanoseconds wait_;
  uint32_t nodes_;
  uint32_t max_payload_;
  Hooks hooks_;
  PlanChanges changes_;
  bool begun_ = false, stopped_ = false;
  uint64_t round_ = 0;
  bool measuring_ = false;
  std::vector<config::PolicySettings> asked_;       // in the round under way
  std::map<uint32_t, planner::NodeCosts> answers_;  // by node
  std::vector<config::PolicySettings> known_;       // from the last whole round
  std::optional<planner::NodeCosts> costs_;
  std::vector<Waiting> waiting_;
  Json policy_json_;                    // when policy_ was parsed
  Policy policy_;                       // nullptr: it makes no sense
  std::map<uint32_t, Bucket> buckets_;  // that exist, as many as are watched
  size_t watched_bytes_ = 0;            // that their manifests take, about
  bool told_of_limit_ = false;
  std::deque<uint32_t> due_;  // whose plans are to be looked at: one changes at a time
  Timer patience_, again_, retry_, rest_;
};

}  // namespace gradwire::control
