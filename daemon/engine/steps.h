// What the collectives' coroutines have in common: what they wait for and how they say what they send.
#pragma once

#include <coroutine>
#include <cstdint>

#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"

namespace gradwire::engine {

// How many segments a node alone handles before others get their turn.
inline constexpr uint32_t kAloneBurst = 8;

// co_await: until Operation::way can take another segment of this operation.
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

// co_await: the next message, checked against what must come; it is valid until the
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

// Of the operation in flight.
inline std::span<const compress::Segment> segments(const Bucket& bucket, uint32_t chunk) {
  return reducer_of(bucket).geometry().segments(chunk);
}

inline Core::Outgoing outgoing(const Bucket& bucket, MessageKind kind, uint32_t hop,
                               const compress::Segment& segment, size_t bytes, bool not_finite) {
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
SendBuffer* encode(Core& core, Bucket& bucket, const compress::Segment& segment,
                   std::span<const std::byte> arrived, uint32_t* bytes, bool* not_finite);
// This node's own share of a segment, to where Operation::way leads. False: the operation has failed.
bool send_share(Core& core, Bucket& bucket, const compress::Segment& segment);
// Into its place in the result. False: the operation has failed.
bool decode(Core& core, Bucket& bucket, const compress::Segment& segment, std::span<const std::byte> bytes);
// The owner's part of a segment: its verdict, and the sum as it travels and as the result gets it. False: the
// operation has failed.
bool finish(Core& core, Bucket& bucket, const compress::Segment& segment, SendBuffer* buffer, uint32_t* bytes,
            bool not_finite);

// Passes on what has arrived as it is. False: the operation has failed.
inline bool forward(Core& core, Bucket& bucket, const Arrival& arrival, const Core::Outgoing& what) {
  SendBuffer* const buffer = core.acquire(bucket);
  if (buffer != nullptr) {
    copy_bytes(buffer->data, arrival.payload);
    core.send(bucket, buffer, what);
  }
  return buffer != nullptr;
}

}  // namespace gradwire::engine
