#include "daemon/engine/collectives.h"

#include <cstring>

namespace gradwire::engine {

namespace {

using compress::HopOutcome;
using compress::Segment;

// How many segments a node alone handles before others get their turn.
constexpr uint32_t kAloneBurst = 8;

// co_await: until the link can take another segment of this operation.
class Room {
 public:
  Room(Core& core, Bucket& bucket) : core_(core), bucket_(bucket) {}
  bool await_ready() const { return core_.has_room(bucket_); }
  void await_suspend(std::coroutine_handle<> waiter) const { core_.wait_for_room(bucket_, waiter); }
  void await_resume() const { ++bucket_.operation.burst; }

 private:
  Core& core_;
  Bucket& bucket_;
};

// co_await: the next message from the left neighbour, checked against what must come; it is valid until the
// next co_await, since the coroutine runs inside the transport's call.
class Receive {
 public:
  explicit Receive(Bucket& bucket) : bucket_(bucket) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> waiter) const { bucket_.operation.receiver = waiter; }
  const Arrival& await_resume() const { return bucket_.operation.arrival; }

 private:
  Bucket& bucket_;
};

// co_await: other operations and the transport get their turn.
class Yield {
 public:
  Yield(Core& core, Bucket& bucket) : core_(core), bucket_(bucket) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> waiter) const { core_.yield(bucket_, waiter); }
  void await_resume() const {}

 private:
  Core& core_;
  Bucket& bucket_;
};

std::span<const Segment> segments(const Bucket& bucket, uint32_t chunk) {
  return bucket.spec.reducer->geometry().segments(chunk);
}

Core::Outgoing outgoing(const Bucket& bucket, MessageKind kind, uint32_t hop, const Segment& segment,
                        size_t bytes, bool not_finite) {
  Core::Outgoing what;
  what.kind = kind;
  what.hop = hop;
  what.chunk = segment.chunk;
  what.segment = segment.index;
  what.bytes = static_cast<uint32_t>(bytes);
  what.raw_bytes = segment.elements * bucket.dtype_bytes;
  what.not_finite = not_finite;
  return what;
}

// Sums a segment and encodes it into a buffer. nullptr: the operation has failed.
SendBuffer* encode(Core& core, Bucket& bucket, const Segment& segment, std::span<const std::byte> arrived,
                   uint32_t* bytes, bool* not_finite) {
  SendBuffer* const buffer = core.acquire(bucket);
  if (buffer == nullptr) {
    return nullptr;
  }
  const Result<HopOutcome> outcome =
      bucket.spec.reducer->hop(segment, arrived, bucket.spec.gradients, buffer->data);
  if (!outcome.ok()) {
    core.release(buffer);
    core.fail_operation(bucket, outcome.status());
    return nullptr;
  }
  *bytes = outcome->bytes;
  *not_finite |= outcome->not_finite;
  bucket.operation.not_finite |= *not_finite;
  return buffer;
}

bool decode(Core& core, Bucket& bucket, const Segment& segment, std::span<const std::byte> bytes) {
  const Status status = bucket.spec.reducer->decode(segment, bytes, bucket.spec.result);
  if (!status.ok()) {
    core.fail_operation(bucket, status);
  }
  return status.ok();
}

// A partial sum: takes this node's share in, and goes on to the right. The owner's stop is the last one; what
// it sends from there is the finished sum.
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
  if (owner && !decode(core, bucket, segment, {buffer->data, bytes})) {
    core.release(buffer);
    return false;
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
  bucket.operation.gathering = true;
  if (!last) {
    SendBuffer* const buffer = core.acquire(bucket);
    if (buffer == nullptr) {
      return false;
    }
    if (!arrival.payload.empty()) {
      std::memcpy(buffer->data, arrival.payload.data(), arrival.payload.size());
    }
    core.send(
        bucket, buffer,
        outgoing(bucket, MessageKind::kGather, header.hop + 1, segment, arrival.payload.size(), not_finite));
  }
  return decode(core, bucket, segment, arrival.payload);
}

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

}  // namespace

Task ring_inject(Core& core, Bucket& bucket) {
  for (const Segment& segment : segments(bucket, bucket.job->spec.node_index)) {
    co_await Room(core, bucket);
    bool not_finite = false;
    uint32_t bytes = 0;
    SendBuffer* const buffer = encode(core, bucket, segment, {}, &bytes, &not_finite);
    if (buffer == nullptr) {
      co_return;
    }
    core.send(bucket, buffer, outgoing(bucket, MessageKind::kReduce, 0, segment, bytes, not_finite));
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
    const bool decoded = decode(core, bucket, segment, {buffer->data, bytes});
    core.release(buffer);
    if (!decoded) {
      co_return;
    }
  }
  core.end_part(bucket);
}

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
    copy_bytes(static_cast<std::byte*>(bucket.spec.result) + index * limit, source + index * limit,
               broadcast_segment_bytes(total, limit, index));
  }
  core.end_part(bucket);
}

}  // namespace gradwire::engine
