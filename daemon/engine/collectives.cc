#include "daemon/engine/collectives.h"

#include "daemon/engine/steps.h"

namespace gradwire::engine {

namespace {

using compress::Segment;

// Two looks at the clock cost less than a thousandth of a segment that is full.
constexpr uint32_t kTimedSegments = 8;

bool is_timed(const Segment& segment) {
  return segment.index % kTimedSegments == 0;
}

// A partial sum: takes this node's share in, and goes on to the right. The owner's stop is the last one; what
// it sends from there is the finished sum, unless nobody else wants it.
bool reduce(Core& core, Bucket& bucket, const Arrival& arrival) {
  const MessageHeader& header = *arrival.header;
  const Segment& segment = segments(bucket, header.chunk)[header.segment];
  const bool owner = header.hop + 2 == bucket.job->spec.nodes;
  bool not_finite = (header.flags & kMessageNotFinite) != 0;
  uint32_t bytes = 0;
  SendBuffer* const buffer = encode(core, bucket, segment, arrival.payload, &bytes, &not_finite);
  if (buffer == nullptr) {
    return false;
  }
  if (owner) {
    const bool finished = finish(core, bucket, segment, buffer, &bytes, not_finite);
    if (!finished || uses_shards(bucket.operation.signature.operation)) {
      core.release(buffer);
      return finished;
    }
  }
  core.send(bucket, buffer,
            outgoing(bucket, owner ? MessageKind::kGather : MessageKind::kReduce, header.hop + 1, segment,
                     bytes, not_finite));
  return true;
}

// A finished sum: goes on to the right, unless the right neighbour is its owner, and into the result.
bool gather(Core& core, Bucket& bucket, const Arrival& arrival) {
  const MessageHeader& header = *arrival.header;
  const Segment& segment = segments(bucket, header.chunk)[header.segment];
  const bool last = header.hop + 3 == 2 * bucket.job->spec.nodes;
  const bool not_finite = (header.flags & kMessageNotFinite) != 0;
  bucket.operation.not_finite |= not_finite;
  if (!last && !forward(core, bucket, arrival,
                        outgoing(bucket, MessageKind::kGather, header.hop + 1, segment,
                                 arrival.payload.size(), not_finite))) {
    return false;
  }
  return decode(core, bucket, segment, arrival.payload);
}

}  // namespace

SendBuffer* encode(Core& core, Bucket& bucket, const compress::Segment& segment,
                   std::span<const std::byte> arrived, uint32_t* bytes, bool* not_finite) {
  SendBuffer* const buffer = core.acquire(bucket);
  if (buffer == nullptr) {
    return nullptr;
  }
  const uint64_t since = is_timed(segment) ? core.now_ns() : 0;
  const Result<compress::HopOutcome> outcome =
      reducer_of(bucket).hop(segment, arrived, bucket.spec.gradients, buffer->data);
  if (is_timed(segment)) {
    bucket.counters.hop_ns += core.now_ns() - since;
    bucket.counters.hop_elements += segment.elements;
  }
  if (!outcome.ok()) {
    core.release(buffer);
    core.fail_operation(bucket, outcome.status());
    return nullptr;
  }
  *bytes = outcome->bytes;
  *not_finite |= outcome->not_finite;
  return buffer;
}

bool decode(Core& core, Bucket& bucket, const compress::Segment& segment, std::span<const std::byte> bytes) {
  const uint64_t since = is_timed(segment) ? core.now_ns() : 0;
  const Status status = reducer_of(bucket).decode(segment, bytes, bucket.spec.result);
  if (is_timed(segment)) {
    bucket.counters.decode_ns += core.now_ns() - since;
    bucket.counters.decode_elements += segment.elements;
  }
  if (!status.ok()) {
    core.fail_operation(bucket, status);
  }
  return status.ok();
}

bool finish(Core& core, Bucket& bucket, const compress::Segment& segment, SendBuffer* buffer, uint32_t* bytes,
            bool not_finite) {
  bucket.operation.not_finite |= not_finite;
  *bytes = reducer_of(bucket).finish(segment, buffer->data, *bytes);
  return decode(core, bucket, segment, {buffer->data, *bytes});
}

Place place_of(const Bucket& bucket, const MessageHeader& header) {
  const JobSpec& job = bucket.job->spec;
  if (bucket.operation.signature.operation == layout::kOpBroadcast) {
    return {MessageKind::kBroadcast, 0, header.hop};
  }
  const bool reduces = header.hop + 1 < job.nodes;
  const MessageKind kind = reduces ? MessageKind::kReduce : MessageKind::kGather;
  if (bucket.operation.signature.direct) {
    const uint32_t owner = reduces ? job.node_index : header.from_node;
    return {kind, owned_chunk(owner, job.nodes), (reduces ? 0 : job.nodes) + header.from_node};
  }
  return {kind, arriving_chunk(job.nodes, job.node_index, header.hop), header.hop};
}

bool sends_to(const Bucket& bucket, uint32_t node) {
  const Job& job = *bucket.job;
  return bucket.operation.signature.direct ? node != job.spec.node_index : node == job.right_node;
}

bool hears_from(const Bucket& bucket, uint32_t node) {
  const Job& job = *bucket.job;
  return bucket.operation.signature.direct ? node != job.spec.node_index : node == job.left_node;
}

bool may_send(const Bucket& bucket, uint32_t node) {
  return bucket.operation.signature.direct ? bucket.direct->granted[node] != 0
                                           : bucket.operation.grants_left == 0;
}

uint64_t arriving_segments(const Core& core, const Bucket& bucket, uint32_t hop) {
  if (bucket.operation.signature.operation == layout::kOpBroadcast) {
    return broadcast_segments(bucket.spec.elements * bucket.dtype_bytes, core.broadcast_bytes());
  }
  const JobSpec& job = bucket.job->spec;
  return segments(bucket, arriving_chunk(job.nodes, job.node_index, hop)).size();
}

uint32_t awaited_hop(const Core& core, const Bucket& bucket) {
  const Operation& operation = bucket.operation;
  uint32_t hop = operation.first_hop;
  while (hop < operation.end_hop && operation.next_segment[hop] == arriving_segments(core, bucket, hop)) {
    ++hop;
  }
  return hop;
}

bool send_share(Core& core, Bucket& bucket, const Segment& segment) {
  bool not_finite = false;
  uint32_t bytes = 0;
  SendBuffer* const buffer = encode(core, bucket, segment, {}, &bytes, &not_finite);
  if (buffer != nullptr) {
    Core::Outgoing what = outgoing(bucket, MessageKind::kReduce, 0, segment, bytes, not_finite);
    what.way = bucket.operation.way;
    core.send(bucket, buffer, what);
  }
  return buffer != nullptr;
}

Task ring_inject(Core& core, Bucket& bucket) {
  for (const Segment& segment : segments(bucket, bucket.job->spec.node_index)) {
    co_await Room(core, bucket);
    if (!send_share(core, bucket, segment)) {
      co_return;
    }
  }
  core.end_part(bucket);
}

Task ring_relay(Core& core, Bucket& bucket) {
  while (bucket.operation.arrivals_left > 0) {
    const Arrival& arrival = co_await Receive(bucket);
    const bool reducing = arrival.header->hop + 1 < bucket.job->spec.nodes;
    if (!(reducing ? reduce(core, bucket, arrival) : gather(core, bucket, arrival))) {
      co_return;
    }
  }
  core.end_part(bucket);
}

Task reduce_alone(Core& core, Bucket& bucket) {
  uint32_t handled = 0;
  for (const Segment& segment : segments(bucket, 0)) {
    if (handled++ == kAloneBurst) {
      handled = 1;
      co_await Yield(core, bucket);
    }
    bool not_finite = false;
    uint32_t bytes = 0;
    SendBuffer* const buffer = encode(core, bucket, segment, {}, &bytes, &not_finite);
    if (buffer == nullptr) {
      co_return;
    }
    const bool finished = finish(core, bucket, segment, buffer, &bytes, not_finite);
    core.release(buffer);
    if (!finished) {
      co_return;
    }
  }
  core.end_part(bucket);
}

}  // namespace gradwire::engine
