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

void SegmentBuilder::start_run(uint64_t first_element) {
  next_element_ = first_element;
  Segment& open = chunks_.back().back();
  if (open.elements == 0) {
    open.first_element = first_element;
  } else {
    open_fresh();
  }
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

Geometry cut_raw(uint64_t elements, uint64_t element_bytes, const BucketShape& shape) {
  SegmentBuilder builder(shape.max_message_bytes);
  for (uint32_t chunk = 0; chunk < shape.nodes; ++chunk) {
    uint64_t at = chunk_begin(elements, shape.nodes, chunk);
    const uint64_t end = chunk_begin(elements, shape.nodes, chunk + 1);
    builder.start_chunk(at);
    while (at < end) {
      at += builder.add_raw(end - at, element_bytes);
    }
  }
  return builder.finish();
}

Status check_shards(uint64_t elements, uint32_t chunks, std::span<const uint32_t> rank_chunk) {
  if (rank_chunk.empty()) {
    return {Code::kInvalidArgument, "a bucket cannot be cut into shards for 0 ranks; name at least 1"};
  }
  if (elements % rank_chunk.size() != 0) {
    return {Code::kInvalidArgument, "a bucket of " + std::to_string(elements) +
                                        " elements has no equal shards for " +
                                        std::to_string(rank_chunk.size()) + " ranks; pad its last layer"};
  }
  for (size_t rank = 0; rank < rank_chunk.size(); ++rank) {
    if (rank_chunk[rank] >= chunks) {
      return {Code::kInvalidArgument, "the shard of rank " + std::to_string(rank) + " is put into chunk " +
                                          std::to_string(rank_chunk[rank]) + "; a ring of " +
                                          std::to_string(chunks) + " nodes has 0 to " +
                                          std::to_string(chunks - 1)};
    }
  }
  return ok_status();
}

Geometry cut_shards(uint64_t elements, uint64_t element_bytes, const BucketShape& shape,
                    std::span<const uint32_t> rank_chunk) {
  const uint64_t shard = elements / rank_chunk.size();
  std::vector<std::vector<uint64_t>> ranks(shape.nodes);  // by chunk
  for (size_t rank = 0; rank < rank_chunk.size(); ++rank) {
    ranks[rank_chunk[rank]].push_back(rank);
  }
  SegmentBuilder builder(shape.max_message_bytes);
  for (const std::vector<uint64_t>& chunk : ranks) {
    builder.start_chunk(0);
    for (const uint64_t rank : chunk) {
      builder.start_run(rank * shard);
      for (uint64_t done = 0; done < shard;) {
        done += builder.add_raw(shard - done, element_bytes);
      }
    }
  }
  return builder.finish();
}

}  // namespace gradwire::compress
