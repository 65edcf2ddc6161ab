// The shares of other nodes that the owner of a chunk has summed up before its own hop, where nodes send them
// straight to it. docs/architecture.md, "direct".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/bucket_plan.h"
#include "config/base/result.h"

namespace gradwire::compress {

// Holds nothing where shares go around the ring, or where no more than two nodes share.
class CollectedShares {
 public:
  explicit CollectedShares(const BucketPlan& plan);

  bool collects() const { return !has_.empty(); }
  uint64_t bytes() const { return (sum_.size() + share_.size()) * sizeof(float); }
  // Before an operation.
  void clear();
  // kCorrupt: not what hop() writes for the segment; what is collected is spoilt then. kUnsupported: not a
  // segment of this node's own chunk.
  Status add(const BucketPlan& plan, const Segment& segment, std::span<const std::byte> share);
  // The sum for an element of the segment on; null: nothing has been collected of it.
  float* from(const Segment& segment, uint64_t element);

 private:
  Status add_block(const BucketPlan& plan, const Block& block, ByteReader& share, bool first, float* to);

  uint32_t chunk_ = 0;
  uint64_t first_ = 0;        // element of the bucket
  std::vector<float> sum_;    // of the own chunk
  std::vector<uint8_t> has_;  // by segment of the own chunk
  std::vector<float> share_;  // one block of the share that is being added
};

}  // namespace gradwire::compress
