// What the tests of epochs and residuals share.
#pragma once

#include "tests/control/fakes.h"

namespace gradwire::control::testing {

inline Manifest gradient(const std::string& name, const std::string& layer, uint64_t elements) {
  return {name, 0, kBucketGradient, {{layer, elements}}};
}

inline void kill(TestCluster& cluster, const std::shared_ptr<TestRank>& rank) {
  rank->bucket.reset();  // the kernel closes what it had
  rank->member->trainer_gone(rank->rank, "died (pid 1)");
  cluster.scheduler.settle();
}

}  // namespace gradwire::control::testing
