#include "compress/collected.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "compress/accumulate.h"

namespace gradwire::compress {

CollectedShares::CollectedShares(const BucketPlan& plan) {
  if (!plan.direct || plan.nodes <= 2) {
    return;
  }
  chunk_ = own_chunk(plan.node, plan.nodes);
  const std::span<const Segment> segments = plan.geometry.segments(chunk_);
  first_ = segments.front().first_element;
  uint64_t elements = 0;
  for (const Segment& segment : segments) {
    elements += segment.elements;
  }
  sum_.resize(elements);
  has_.resize(segments.size());
  share_.resize(plan.largest_coded);
}

void CollectedShares::clear() {
  std::fill(has_.begin(), has_.end(), 0);
}

Status CollectedShares::add(const BucketPlan& plan, const Segment& segment,
                            std::span<const std::byte> share) {
  if (segment.chunk != chunk_ || segment.index >= has_.size()) {
    return {Code::kUnsupported, "this node collects no shares of chunk " + std::to_string(segment.chunk)};
  }
  ByteReader reader(share);
  const bool first = std::exchange(has_[segment.index], 1) == 0;
  for (uint32_t i = segment.first_block; i < segment.first_block + segment.blocks; ++i) {
    const Block& block = plan.blocks[i];
    GRADWIRE_RETURN_IF_ERROR(add_block(plan, block, reader, first, sum_.data() + (block.first - first_)));
  }
  return all_read(reader, "a share");
}

Status CollectedShares::add_block(const BucketPlan& plan, const Block& block, ByteReader& share, bool first,
                                  float* to) {
  if (block.codec != 0) {
    BlockCodec& codec = *plan.codecs[block.codec];
    return first ? codec.decode(share, block.elements, 1.0F, to)
                 : codec.add_decoded(share, block.elements, share_.data(), to);
  }
  const size_t bytes = size_t{block.elements} * sizeof(float);
  const std::byte* const values = share.take(bytes);
  if (values == nullptr) {
    return truncated("raw elements");
  }
  if (first) {
    std::memcpy(to, values, bytes);
  } else {
    add_bytes(values, to, to, block.elements);
  }
  return ok_status();
}

float* CollectedShares::from(const Segment& segment, uint64_t element) {
  const bool any = collects() && segment.chunk == chunk_ && has_[segment.index] != 0;
  return any ? sum_.data() + (element - first_) : nullptr;
}

}  // namespace gradwire::compress
