#include "compress/geometry.h"

#include <algorithm>
#include <utility>

namespace gradwire::compress {

uint64_t chunk_begin(uint64_t elements, uint32_t chunks, uint32_t chunk) {
  const uint64_t units = (elements + kChunkAlignment - 1) / kChunkAlignment;
  return std::min(elements, kChunkAlignment * (chunk * units / chunks));
}

Result<uint64_t> checked_elements(const BucketShape& shape) {
  if (shape.nodes < 1 || shape.nodes > kMaxNodes) {
    return Status(Code::kInvalidArgument, "a bucket cannot be cut for " + std::to_string(shape.nodes) +
                                              " nodes; use 1 to " + std::to_string(kMaxNodes));
  }
  if (shape.max_message_bytes < kMinMessageBytes) {
    return Status(Code::kInvalidArgument, "messages of " + std::to_string(shape.max_message_bytes) +
                                              " bytes are too small for a block; allow at least " +
                                              std::to_string(kMinMessageBytes));
  }
  uint64_t total = 0;
  for (const Layer& layer : shape.layers) {
    if (layer.elements > kMaxElements - total) {
      return Status(Code::kInvalidArgument, "layer " + layer.name + " with " +
                                                std::to_string(layer.elements) +
                                                " elements takes the bucket over " +
                                                std::to_string(kMaxElements) + " elements; split the bucket");
    }
    total += layer.elements;
  }
  return total;
}

void SegmentBuilder::start_chunk(uint64_t first_element) {
  chunks_.emplace_back();
  next_element_ = first_element;
  open_fresh();
}

void SegmentBuilder::open_fresh() {
  auto& segments = chunks_.back();
  Segment segment;
  segment.chunk = static_cast<uint32_t>(chunks_.size() - 1);
  segment.index = static_cast<uint32_t>(segments.size());
  segment.first_element = next_element_;
  segment.first_block = next_block_;
  segments.push_back(segment);
}

void SegmentBuilder::add_block(uint64_t elements, uint64_t max_bytes) {
  if (chunks_.back().back().max_bytes + max_bytes > max_bytes_) {
    open_fresh();
  }
  Segment& segment = chunks_.back().back();
  segment.elements += elements;
  segment.max_bytes += static_cast<uint32_t>(max_bytes);
  segment.blocks += 1;
  next_element_ += elements;
  next_block_ += 1;
}

uint64_t SegmentBuilder::add_raw(uint64_t elements, uint64_t element_bytes) {
  const uint64_t room = (max_bytes_ - chunks_.back().back().max_bytes) / element_bytes;
  uint64_t count = elements;
  if (elements > room) {
    count = room / kRawBlock * kRawBlock;
  }
  if (count == 0) {
    open_fresh();
    count = std::min(elements, max_bytes_ / element_bytes / kRawBlock * kRawBlock);
  }
  add_block(count, count * element_bytes);
  return count;
}

Geometry SegmentBuilder::finish() {
  return Geometry(std::move(chunks_));
}

}  // namespace gradwire::compress
