#include "compress/sampled.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace gradwire::compress {
namespace {

bool goes_by_samples(const BucketPlan& plan, const Block& block) {
  return block.piece != kNoPiece &&
         plan.layers[plan.pieces[block.piece].layer].selection == Selection::kSampled;
}

}  // namespace

// Layers of the bucket's scope come first, so that their samples are one run.
SampledThresholds::SampledThresholds(const BucketPlan& plan)
    : first_of_block_(plan.blocks.size()), group_of_(plan.layers.size(), kNone) {
  uint64_t next = 0;
  for (const ThresholdScope scope : {ThresholdScope::kBucket, ThresholdScope::kLayer}) {
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
      const SparseLayer& layer = plan.layers[l];
      if (layer.selection != Selection::kSampled || layer.scope != scope) {
        continue;
      }
      if (groups_.empty() || scope == ThresholdScope::kLayer) {
        groups_.push_back({l, next, 0, 0});
      }
      group_of_[l] = static_cast<uint32_t>(groups_.size() - 1);
      for (uint32_t p = layer.first_piece; p < layer.first_piece + layer.pieces; ++p) {
        const SparsePiece& piece = plan.pieces[p];
        for (uint32_t b = piece.first_block; b < piece.first_block + piece.blocks; ++b) {
          first_of_block_[b] = next;
          next += plan.blocks[b].elements / kSampleStride;
        }
      }
      groups_.back().count = next - groups_.back().first;
    }
  }
  samples_.resize(next);
  scratch_.resize(next);
}

std::span<uint32_t> SampledThresholds::of_block(const BucketPlan& plan, uint32_t index) {
  const Block& block = plan.blocks[index];
  if (!goes_by_samples(plan, block)) {
    return {};
  }
  return std::span(samples_).subspan(first_of_block_[index], block.elements / kSampleStride);
}

void SampledThresholds::settle(Group& group, double density) {
  if (group.count == 0) {
    return;
  }
  const auto from = samples_.begin() + static_cast<std::ptrdiff_t>(group.first);
  std::copy_n(from, group.count, scratch_.begin());
  const auto kept = static_cast<uint64_t>(std::clamp(std::ceil(density * static_cast<double>(group.count)),
                                                     1.0, static_cast<double>(group.count)));
  const auto end = scratch_.begin() + static_cast<std::ptrdiff_t>(group.count);
  const auto quantile = scratch_.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(scratch_.begin(), quantile, end, std::greater<>());
  group.threshold = std::bit_cast<float>(*quantile);
}

uint32_t SampledThresholds::threshold(uint32_t layer, float factor) const {
  if (group_of_[layer] == kNone) {
    return 0;
  }
  return std::bit_cast<uint32_t>(groups_[group_of_[layer]].threshold * factor) & 0x7fffffff;
}

}  // namespace gradwire::compress
