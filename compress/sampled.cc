#include "compress/sampled.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "compress/l8.h"

namespace gradwire::compress {
// Layers of the bucket's scope come first, so that their samples are one run.
SampledThresholds::SampledThresholds(const BucketPlan& plan) : group_of_(plan.layers.size(), kNone) {
  for (const ThresholdScope scope : {ThresholdScope::kBucket, ThresholdScope::kLayer}) {
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
      const SparseLayer& layer = plan.layers[l];
      if (layer.selection != Selection::kSampled || layer.scope != scope) {
        continue;
      }
      if (groups_.empty() || scope == ThresholdScope::kLayer) {
        groups_.emplace_back();
      }
      groups_.back().layers.push_back(l);
      groups_.back().elements += layer.elements;
      group_of_[l] = static_cast<uint32_t>(groups_.size() - 1);
    }
  }
  if (groups_.empty()) {
    return;
  }
  first_of_block_.resize(plan.blocks.size());
  uint64_t next = 0;
  uint64_t largest = 0;
  for (Group& group : groups_) {
    group.stride = sample_stride(group.elements);
    group.first = next;
    for (const uint32_t l : group.layers) {
      place_layer(plan, plan.layers[l], group.stride, next);
    }
    group.count = next - group.first;
    largest = std::max(largest, group.count);
  }
  samples_.resize(next);
  scratch_.resize(largest);
}

void SampledThresholds::place_layer(const BucketPlan& plan, const SparseLayer& layer, uint32_t stride,
                                    uint64_t& next) {
  for (uint32_t p = layer.first_piece; p < layer.first_piece + layer.pieces; ++p) {
    const SparsePiece& piece = plan.pieces[p];
    for (uint32_t b = piece.first_block; b < piece.first_block + piece.blocks; ++b) {
      first_of_block_[b] = next;
      next += plan.blocks[b].elements / stride;
    }
  }
}

SampledThresholds::Place SampledThresholds::of_block(const BucketPlan& plan, uint32_t index) {
  const Block& block = plan.blocks[index];
  const uint32_t group = block.piece == kNoPiece ? kNone : group_of_[plan.pieces[block.piece].layer];
  if (group == kNone) {
    return {};
  }
  const uint32_t stride = groups_[group].stride;
  return {std::span(samples_).subspan(first_of_block_[index], block.elements / stride), stride};
}

void SampledThresholds::settle(Group& group, double density, double scale, double factor) {
  if (group.count == 0 || group.sampled_at == 0) {
    group.threshold *= static_cast<float>(factor);
    return;
  }
  const auto from = samples_.begin() + static_cast<std::ptrdiff_t>(group.first);
  std::copy_n(from, group.count, scratch_.begin());
  const auto kept = static_cast<uint64_t>(std::clamp(std::ceil(density * static_cast<double>(group.count)),
                                                     1.0, static_cast<double>(group.count)));
  const auto end = scratch_.begin() + static_cast<std::ptrdiff_t>(group.count);
  const auto quantile = scratch_.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(scratch_.begin(), quantile, end, std::greater<>());
  group.threshold = std::bit_cast<float>(std::max(*quantile, 1U));  // zeros are never sent
  if (group.sampled_at != scale) {
    group.threshold *= static_cast<float>(scale / group.sampled_at);
  }
}

float SampledThresholds::next(uint32_t layer) const {
  return group_of_[layer] == kNone ? 0.0F : groups_[group_of_[layer]].threshold;
}

void SampledThresholds::restore(uint32_t layer, uint64_t elements, float threshold) {
  if (group_of_[layer] == kNone || !(threshold > 0) || !std::isfinite(threshold)) {
    return;
  }
  Group& group = groups_[group_of_[layer]];
  if (elements > group.restored) {
    group.restored = elements;
    group.threshold = threshold;
  }
}

uint32_t SampledThresholds::threshold(uint32_t layer, float factor) const {
  const float threshold = next(layer);
  return threshold == 0 ? 0 : std::max(1U, std::bit_cast<uint32_t>(threshold * factor) & l8::kMagnitude);
}

}  // namespace gradwire::compress
