// Thresholds from a sample: gradient dropping (Aji and Heafield, EMNLP 2017).
//
// Of every kSampleStride elements that a step sums, one magnitude is kept; at its commit the quantile that
// leaves the next step's share above it becomes that step's threshold, by layer or for all such layers of the
// bucket at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/bucket_plan.h"

namespace gradwire::compress {

class SampledThresholds {
 public:
  explicit SampledThresholds(const BucketPlan& plan);

  // Where block `index` of the plan puts its samples; empty for blocks that do not go by them.
  std::span<uint32_t> of_block(const BucketPlan& plan, uint32_t index);

  // At a commit: thresholds for the next step. `aimed(layer)` is the density that it will aim at.
  template <typename Aimed>
  void settle(Aimed aimed) {
    for (Group& group : groups_) {
      settle(group, aimed(group.layer));
    }
  }

  // Magnitude bits for a sparse layer of the plan when residuals are multiplied by `factor`; 0: none yet.
  uint32_t threshold(uint32_t layer, float factor) const;

 private:
  // Samples that share a threshold: those of one layer, or of all with the bucket's scope.
  struct Group {
    uint32_t layer = 0;  // the first
    uint64_t first = 0;  // into samples_
    uint64_t count = 0;
    float threshold = 0;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void settle(Group& group, double density);

  std::vector<uint64_t> first_of_block_;
  std::vector<uint32_t> samples_;
  std::vector<uint32_t> scratch_;
  std::vector<Group> groups_;
  std::vector<uint32_t> group_of_;  // by sparse layer
};

}  // namespace gradwire::compress
