// What the tests of epochs and residuals share.
#pragma once

#include "compress/reducer.h"
#include "tests/control/fakes.h"

namespace gradwire::control::testing {

inline Manifest gradient(const std::string& name, const std::string& layer, uint64_t elements) {
  return {name, 0, kBucketGradient, {{layer, elements}}};
}

inline compress::LayerState layer_state(const std::string& name, std::vector<float> residual) {
  compress::LayerState state;
  state.name = name;
  state.elements = residual.size();
  state.residual.memory = std::make_shared<const std::vector<float>>(std::move(residual));
  state.operations = 5;
  return state;
}

// A cluster whose policy compresses.
struct Compressing : TestCluster {
  explicit Compressing(const std::vector<std::string>& names, Nanoseconds residual_ttl = seconds(600))
      : TestCluster(names, residual_ttl) {
    config::CompressionPolicy l8;
    l8.defaults.codec = "l8";
    coordinator->set_policy(config::policy_to_json(l8));
  }
};

inline void kill(TestCluster& cluster, const std::shared_ptr<TestRank>& rank) {
  rank->bucket.reset();  // the kernel closes what it had
  rank->member->trainer_gone(rank->rank, "died (pid 1)");
  cluster.scheduler.settle();
}

}  // namespace gradwire::control::testing
