// The collectives: one operation's coroutines, which read from top to bottom. Words as in
// docs/architecture.md: node i of P; chunk c is a P-th of the bucket; hops 0 .. 2P-3.
//
// At hop h node i sends chunk (i - h) mod P and receives chunk (i - h - 1) mod P. At hops 0 .. P-2 a chunk
// gathers every node's share (reduce); its last stop there, node (c - 1) mod P, is its owner, which finishes
// the sum; at hops P-1 .. 2P-3 the owner's bytes go once around (gather), and everybody decodes the same
// ones.
//
// Straight to the owner (Algorithm::kDirect): every node sends its share of chunk c to the owner at once, and
// the owner its finished sum to everybody.
//
// reduce_scatter is the first half of that and allgather the second, with the bucket cut by shards: the owner
// of chunk c is the node whose ranks' shards are in it.
#pragma once

#include <cstring>
#include <span>

#include "daemon/engine/core.h"
#include "daemon/engine/task.h"

namespace gradwire::engine {

// This node's own chunk sets out at hop 0, segment by segment, as fast as the link takes it.
Task ring_inject(Core& core, Bucket& bucket);
// Everything that arrives from the left: reduced and passed on, or decoded and passed on.
Task ring_relay(Core& core, Bucket& bucket);
// A job on one node: sums the local ranks through the same codec.
Task reduce_alone(Core& core, Bucket& bucket);

// Sends this node's shares to their owners, the right neighbour's first, so that no owner hears from all at
// once.
Task direct_inject(Core& core, Bucket& bucket);
// All others' shares of this node's own chunk, and the finished sums of theirs.
Task direct_relay(Core& core, Bucket& bucket);
uint64_t direct_arrivals(const Bucket& bucket);
// Where a direct operation is: whether all shares of this node's chunk are here, and the node whose message
// must come next (UINT32_MAX: nobody's).
struct DirectView {
  bool summed = false;
  uint32_t awaited = UINT32_MAX;
};
DirectView view_direct(const Bucket& bucket);
// Shares that came too early for an operation which has ended.
void drop_held(Core& core, Bucket& bucket);

// The shards of this node's ranks set out at hop P-1 as they are, and go into the result.
Task allgather_inject(Core& core, Bucket& bucket);
// All others' shards: into the result and passed on.
Task allgather_relay(Core& core, Bucket& bucket);
Task allgather_alone(Core& core, Bucket& bucket);

// The root's node: bytes from the root's gradient region to its own result and to the right.
Task broadcast_root(Core& core, Bucket& bucket);
Task broadcast_relay(Core& core, Bucket& bucket);
// The root's node in a job on one node.
Task broadcast_alone(Core& core, Bucket& bucket);

inline bool uses_shards(uint8_t operation) {
  return operation == layout::kOpAllgather || operation == layout::kOpReduceScatter;
}
// The cut and the arithmetic of the operation in flight.
inline compress::BucketReducer& reducer_of(const Bucket& bucket) {
  return uses_shards(bucket.operation.signature.operation) ? *bucket.spec.shards : *bucket.spec.reducer;
}
// Every chunk is one small message: the operation needs no grant (a broadcast always does).
inline bool is_small(const Bucket& bucket, uint8_t operation) {
  return operation != layout::kOpBroadcast && (uses_shards(operation) ? bucket.small_shards : bucket.small);
}
// Messages that a node may get before it starts a small operation: those that nothing of its own is in.
inline bool may_be_early(const MessageHeader& header) {
  return header.kind == static_cast<uint8_t>(MessageKind::kReduce) ||
         (header.kind == static_cast<uint8_t>(MessageKind::kGather) &&
          header.operation == layout::kOpAllgather);
}
// What a message must be, and where in Operation::next_segment its number is; of hops that may arrive.
struct Place {
  MessageKind kind = MessageKind::kReduce;
  uint32_t chunk = 0;
  uint32_t slot = 0;
};
Place place_of(const Bucket& bucket, const MessageHeader& header);
// Whether the operation in flight sends data to a node, or hears from it.
bool sends_to(const Bucket& bucket, uint32_t node);
bool hears_from(const Bucket& bucket, uint32_t node);
// Whether nothing keeps it from sending: the node has granted the operation, or need not.
bool may_send(const Bucket& bucket, uint32_t node);
// How many messages of a ring's hop arrive, where any do.
uint64_t arriving_segments(const Core& core, const Bucket& bucket, uint32_t hop);
// The lowest hop of which a message must still come; operation.end_hop if none must.
uint32_t awaited_hop(const Core& core, const Bucket& bucket);

// The chunk whose sum a node finishes.
inline uint32_t owned_chunk(uint32_t node, uint32_t nodes) {
  return compress::own_chunk(node, nodes);
}
inline uint32_t arriving_chunk(uint32_t nodes, uint32_t node, uint32_t hop) {
  return (node + 2 * nodes - hop - 1) % nodes;
}

// Also of nothing, wherever that may lie.
inline void copy_bytes(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) {
    std::memcpy(to, from.data(), from.size());
  }
}

// The broadcast's segments: `bytes` cut into pieces of at most `limit`; an empty bucket has one of 0 bytes.
inline uint64_t broadcast_segments(uint64_t bytes, uint32_t limit) {
  return bytes == 0 ? 1 : (bytes + limit - 1) / limit;
}
inline uint32_t broadcast_segment_bytes(uint64_t bytes, uint32_t limit, uint64_t index) {
  const uint64_t rest = bytes - index * limit;
  return static_cast<uint32_t>(rest < limit ? rest : limit);
}

}  // namespace gradwire::engine
