// The collectives that only distribute: bytes that nobody computes with.
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

std::byte* place(const Bucket& bucket, uint64_t offset) {
  return static_cast<std::byte*>(bucket.spec.result) + offset;
}

std::byte* place(const Bucket& bucket, const Segment& segment) {
  return place(bucket, segment.first_element * bucket.dtype_bytes);
}

// This node's own bytes set out and go into its result. The result is copied from the buffer, so that a
// client that scribbles spoils all nodes' result alike. False: the operation has failed.
bool set_out(Core& core, Bucket& bucket, const std::byte* source, std::byte* result,
             const Core::Outgoing& what) {
  SendBuffer* const buffer = core.acquire(bucket);
  if (buffer != nullptr) {
    copy_bytes(buffer->data, {source, what.bytes});
    copy_bytes(result, {buffer->data, what.bytes});
    core.send(bucket, buffer, what);
  }
  return buffer != nullptr;
}

std::span<const Segment> own_shards(const Bucket& bucket) {
  const JobSpec& job = bucket.job->spec;
  return segments(bucket, compress::own_chunk(job.node_index, job.nodes));
}

}  // namespace

Task broadcast_root(Core& core, Bucket& bucket) {
  const uint64_t total = bucket_bytes(bucket);
  const uint32_t limit = core.broadcast_bytes();
  const std::byte* const source = root_bytes(bucket);
  for (uint64_t index = 0; index < broadcast_segments(total, limit); ++index) {
    co_await Room(core, bucket);
    const Core::Outgoing what = broadcast_outgoing(index, broadcast_segment_bytes(total, limit, index));
    if (!set_out(core, bucket, source + index * limit, place(bucket, index * limit), what)) {
      co_return;
    }
  }
  core.end_part(bucket);
}

Task broadcast_relay(Core& core, Bucket& bucket) {
  const Job& job = *bucket.job;
  const bool passes_on = job.right_node != job.spec.rank_node[bucket.operation.signature.root];
  while (bucket.operation.arrivals_left > 0) {
    const Arrival& arrival = co_await Receive(bucket);
    const uint64_t index = arrival.header->segment;
    const auto bytes = static_cast<uint32_t>(arrival.payload.size());
    if (passes_on && !forward(core, bucket, arrival, broadcast_outgoing(index, bytes))) {
      co_return;
    }
    copy_bytes(place(bucket, index * core.broadcast_bytes()), arrival.payload);
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
    copy_bytes(place(bucket, index * limit),
               {source + index * limit, broadcast_segment_bytes(total, limit, index)});
  }
  core.end_part(bucket);
}

Task allgather_inject(Core& core, Bucket& bucket) {
  for (const Segment& segment : own_shards(bucket)) {
    co_await Room(core, bucket);
    const Core::Outgoing what = outgoing(bucket, MessageKind::kGather, bucket.job->spec.nodes - 1, segment,
                                         segment.elements * bucket.dtype_bytes, false);
    if (!set_out(core, bucket, shard_source(bucket, segment), place(bucket, segment), what)) {
      co_return;
    }
  }
  core.end_part(bucket);
}

Task allgather_relay(Core& core, Bucket& bucket) {
  const uint32_t last_hop = 2 * bucket.job->spec.nodes - 3;  // the right neighbour has sent them out
  while (bucket.operation.arrivals_left > 0) {
    const Arrival& arrival = co_await Receive(bucket);
    const MessageHeader& header = *arrival.header;
    const Segment& segment = segments(bucket, header.chunk)[header.segment];
    if (header.hop != last_hop && !forward(core, bucket, arrival,
                                           outgoing(bucket, MessageKind::kGather, header.hop + 1, segment,
                                                    arrival.payload.size(), false))) {
      co_return;
    }
    copy_bytes(place(bucket, segment), arrival.payload);
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
    copy_bytes(place(bucket, segment),
               {shard_source(bucket, segment), segment.elements * bucket.dtype_bytes});
  }
  core.end_part(bucket);
}

}  // namespace gradwire::engine
