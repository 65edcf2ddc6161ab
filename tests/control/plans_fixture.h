// A cluster whose coordinator plans, and what its nodes measure.
#pragma once

#include "daemon/control/job_planner.h"
#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {

inline constexpr engine::ProbeTimes kGigabit{200'000, 20'000, 17'000'000, 2'000'000};
// As fast as no codec is.
inline constexpr engine::ProbeTimes kFast{20'000, 2'000, 110'000, 100'000};

inline config::PlanOptions automatic() {
  config::PlanOptions plan = pinned();
  plan.bypass = "auto";
  plan.segment = 0;
  return plan;
}

struct Planned : TestCluster {
  explicit Planned(const config::PlanOptions& plan = automatic(), const std::string& codec = "laco",
                   const engine::ProbeTimes& times = kGigabit)
      : TestCluster({"a", "b"}) {
    policy.defaults.codec = codec;
    policy.defaults.warm_start_steps = 0;
    coordinator = std::make_unique<Coordinator>(
        scheduler,
        CoordinatorOptions{nodes[0]->context->self, seconds(2), seconds(10), config::policy_to_json(policy),
                           [](size_t bytes) { return std::string(bytes, 'k'); }, plan});
    set_times(times);
  }
  void set_times(const engine::ProbeTimes& times) {
    for (const auto& node : nodes) {
      node->engine->probe_times = times;
    }
  }
  FakeEngine& engine(size_t node) { return *nodes[node]->engine; }
  const engine::BucketSpec& bucket(size_t node, uint32_t id = 1) { return *engine(node).buckets.at(id); }
  // Until a node's engine has been told so; false: it was not in time.
  bool until_told(size_t node, const std::string& what) {
    for (int i = 0; i < 2000 && !engine(node).logged(what); ++i) {
      scheduler.advance(milliseconds(500));
    }
    return engine(node).logged(what);
  }
  // Measurements that say the same until the older ones do not count any more.
  void wait_for_rounds(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      scheduler.advance(seconds(61));
    }
  }
};

inline Manifest large(const std::string& name = "b0") {
  return gradient(name, "w", 4'000'000);
}

}  // namespace gradwire::control::testing
