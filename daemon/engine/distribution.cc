// The collectives that only distribute: bytes that nobody computes with.
#include <cstring>

#include "daemon/engine/shards.h"
#include "daemon/engine/steps.h"

namespace gradwire::engine {

namespace {

using compress::Segment;

const std::byte* root_bytes(const Bucket& bucket) {
  const std::vector<RankState>& ranks = bucket.job->ranks;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].spec.rank == bucket.operation.signature.root) {
      return static_cast<const std::byte*>(bucket.spec.gradients[i]);
    }
  }
  return nullptr;  // the submissions' check has refused such a root
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

Core::Outgoing broadcast_outgoing(uint64_t index, uint32_t bytes) {
  Core::Outgoing what;
  what.kind = MessageKind::kBroadcast;
  what.segment = static_cast<uint32_t>(index);
  what.bytes = bytes;
  what.raw_bytes = bytes;
  return what;
}

uint64_t bucket_bytes(const Bucket& bucket) {
  return bucket.spec.elements * bucket.dtype_bytes;
}

std::byte* place(const Bucket& bucket, const Segment& segment) {
  return static_cast<std::byte*>(bucket.spec.result) + segment.first_element * bucket.dtype_bytes;
}

std::span<const Segment> own_shards(const Bucket& bucket) {
  const JobSpec& job = bucket.job->spec;
  return segments(bucket, (job.node_index + 1) % job.nodes);
}

}  // namespace

Task broadcast_root(Core& core, Bucket& bucket) {
  const uint64_t total = bucket_bytes(bucket);
  const uint32_t limit = core.broadcast_bytes();
  const std::byte* const source = root_bytes(bucket);
  for (uint64_t index = 0; index < broadcast_segments(total, limit); ++index) {
    co_await Room(core, bucket);
    SendBuffer* const buffer = core.acquire(bucket);
    if (buffer == nullptr) {
      co_return;
    }
    // The result is copied from the buffer, so that a client that scribbles spoils all nodes' result alike.
    const uint32_t bytes = broadcast_segment_bytes(total, limit, index);
    copy_bytes(buffer->data, source + index * limit, bytes);
    copy_bytes(static_cast<std::byte*>(bucket.spec.result) + index * limit, buffer->data, bytes);
    core.send(bucket, buffer, broadcast_outgoing(index, bytes));
  }
  core.end_part(bucket);
}

Task broadcast_relay(Core& core, Bucket& bucket) {
  const Job& job = *bucket.job;
  const bool forward = job.right_node != job.spec.rank_node[bucket.operation.signature.root];
  while (bucket.operation.arrivals_left > 0) {
    const Arrival& arrival = co_await Receive(bucket);
    const auto bytes = static_cast<uint32_t>(arrival.payload.size());
    const uint32_t index = arrival.header->segment;
    bucket.operation.gathering = true;
    if (forward) {
      SendBuffer* const buffer = core.acquire(bucket);
      if (buffer == nullptr) {
        co_return;
      }
      copy_bytes(buffer->data, arrival.payload.data(), bytes);
      core.send(bucket, buffer, broadcast_outgoing(index, bytes));
    }
    copy_bytes(static_cast<std::byte*>(bucket.spec.result) + uint64_t{index} * core.broadcast_bytes(),
               arrival.payload.data(), bytes);
  }
  core.end_part(bucket);
}

Task broadcast_alone(Core& core, Bucket& bucket) {
  const uint64_t total = bucket_bytes(bucket);
  const uint32_t limit = core.broadcast_bytes();
  const std::byte* const source = root_bytes(bucket);
  for (uint64_t index = 0; index < broadcast_segments(total, limit); ++index) {
    if (index % kAloneBurst == kAloneBurst - 1) {
      co_await Yield(core, bucket);
    }
    core.count_segment();
    copy_bytes(static_cast<std::byte*>(bucket.spec.result) + index * limit, source + index * limit,
               broadcast_segment_bytes(total, limit, index));
  }
  core.end_part(bucket);
}

Task allgather_inject(Core& core, Bucket& bucket) {
  for (const Segment& segment : own_shards(bucket)) {
    co_await Room(core, bucket);
    SendBuffer* const buffer = core.acquire(bucket);
    if (buffer == nullptr) {
      co_return;
    }
    // As for a broadcast: a gradient is read once.
    const size_t bytes = segment.elements * bucket.dtype_bytes;
    copy_bytes(buffer->data, shard_source(bucket, segment), bytes);
    copy_bytes(place(bucket, segment), buffer->data, bytes);
    core.send(bucket, buffer,
              outgoing(bucket, MessageKind::kGather, bucket.job->spec.nodes - 1, segment, bytes, false));
  }
  core.end_part(bucket);
}

Task allgather_relay(Core& core, Bucket& bucket) {
  const uint32_t last_hop = 2 * bucket.job->spec.nodes - 3;  // the right neighbour has sent them out
  while (bucket.operation.arrivals_left > 0) {
    const Arrival& arrival = co_await Receive(bucket);
    const MessageHeader& header = *arrival.header;
    const Segment& segment = segments(bucket, header.chunk)[header.segment];
    const size_t bytes = arrival.payload.size();
    if (header.hop != last_hop) {
      SendBuffer* const buffer = core.acquire(bucket);
      if (buffer == nullptr) {
        co_return;
      }
      copy_bytes(buffer->data, arrival.payload.data(), bytes);
      core.send(bucket, buffer,
                outgoing(bucket, MessageKind::kGather, header.hop + 1, segment, bytes, false));
    }
    copy_bytes(place(bucket, segment), arrival.payload.data(), bytes);
  }
  core.end_part(bucket);
}

Task allgather_alone(Core& core, Bucket& bucket) {
  uint32_t handled = 0;
  for (const Segment& segment : own_shards(bucket)) {
    if (handled++ == kAloneBurst) {
      handled = 1;
      co_await Yield(core, bucket);
    }
    core.count_segment();
    copy_bytes(place(bucket, segment), shard_source(bucket, segment), segment.elements * bucket.dtype_bytes);
  }
  core.end_part(bucket);
}

}  // namespace gradwire::engine
