// Thresholds from a sample: gradient dropping (Aji and Heafield, EMNLP 2017).
//
// Of every so many elements that a step sums one magnitude is kept, at most kMostSamples for a threshold; at
// its commit the quantile that leaves the next step's share above it becomes that step's threshold, by layer
// or for all such layers of the bucket at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/bucket_plan.h"

namespace gradwire::compress {

class SampledThresholds {
 public:
  explicit SampledThresholds(const BucketPlan& plan);

  // Where block `index` of the plan puts its samples, one every `stride` elements; empty for blocks that do
  // not go by them.
  struct Place {
    std::span<uint32_t> samples{};
    uint32_t stride = kSampleStride;
  };
  Place of_block(const BucketPlan& plan, uint32_t index);

  // At a commit, of an operation at the loss scale `scale`, `factor` times that of the one before: thresholds
  // for the next step. `aimed(layer)` is the density that it will aim at. After a flush, which leaves the
  // samples alone, those of the operation before it count.
  template <typename Aimed>
  void settle(const BucketPlan& plan, double scale, double factor, bool flush, Aimed aimed) {
    for (Group& group : groups_) {
      group.sampled_at = flush ? group.sampled_at : scale;
      double sent = 0;
      for (const uint32_t layer : group.layers) {
        sent += aimed(layer) * static_cast<double>(plan.layers[layer].elements);
      }
      settle(group, sent / static_cast<double>(group.elements), scale, factor);
    }
  }

  // What settle() found for the layer, in the units of the step before; 0: nothing, or it goes by none.
  float next(uint32_t layer) const;
  uint64_t bytes() const { return (samples_.size() + scratch_.size()) * sizeof(uint32_t); }
  // Instead of settle(), from another bucket's next() for a layer of `elements`; what is not positive and
  // finite changes nothing. With the bucket's scope the largest layer's counts.
  void restore(uint32_t layer, uint64_t elements, float threshold);

  // Magnitude bits, at least 1, for a sparse layer of the plan when residuals are multiplied by `factor`; 0:
  // none yet.
  uint32_t threshold(uint32_t layer, float factor) const;

 private:
  // Samples that share a threshold: those of one layer, or of all with the bucket's scope.
  struct Group {
    std::vector<uint32_t> layers;
    uint64_t elements = 0;
    uint32_t stride = kSampleStride;
    uint64_t first = 0;  // into samples_
    uint64_t count = 0;
    float threshold = 0;    // 0: none yet
    double sampled_at = 0;  // the loss scale of the samples; 0: there are none
    uint64_t restored = 0;  // elements of the layer that it was restored from
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void place_layer(const BucketPlan& plan, const SparseLayer& layer, uint32_t stride, uint64_t& next);
  void settle(Group& group, double density, double scale, double factor);

  std::vector<uint64_t> first_of_block_;  // empty without groups
  std::vector<uint32_t> samples_;
  std::vector<uint32_t> scratch_;  // for the largest group
  std::vector<Group> groups_;
  std::vector<uint32_t> group_of_;  // by sparse layer
};

}  // namespace gradwire::compress
