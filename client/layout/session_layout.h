// The shared memory of a session: one trainer (a rank of one job) and its daemon.
//
//   offset 0                 SessionHeader          written by the daemon, except where noted
//   submission_offset        Submission[capacity]   client -> daemon
//   completion_offset        Completion[capacity]   daemon -> client
//
// This is the one header that client and daemon share. Fixed-width fields only; no pointers, bool, size_t or
// enums; every struct is tested byte for byte against a hand-written picture of it. Layout version 2.
//
// Rings: single producer, single consumer. `tail` counts what was ever produced, `head` what was ever
// consumed; slot = count & (capacity - 1). The producer fills the slot, then stores tail (seq_cst; pairs with
// the consumer's acquire load); the consumer copies the slot out, then stores head (release; pairs with the
// producer's acquire load). Neither side trusts the other's counter: more than `capacity` between the two is
// a protocol error that ends the session.
//
// Sleeping: a consumer that is about to sleep stores 1 to its `sleeping` flag (seq_cst) and looks at the tail
// once more (seq_cst); a producer that has published the tail exchanges the flag with 0 (seq_cst) and rings
// if it was 1. No fences: thread sanitizer does not know them.
//
// The bell is a pair of connected stream sockets, one end each: to ring is to send one byte without waiting;
// a full socket has rung already. Each end has its own file status flags, so that nothing a client does to
// its end can make the daemon wait; an eventfd would be one object for both.
//
// Who may touch the bucket memory: a rank's gradient region is the rank's from completion to its next submit
// and the daemon's otherwise. The result region is one per node, read-only for clients; a rank may read it
// from its completion to its next submit on that bucket.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gradwire::layout {

inline constexpr uint64_t kSessionMagic = 0x3130304552495747;  // "GWIRE001"
inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr uint32_t kCacheLine = 64;
inline constexpr uint32_t kRingCapacity = 4096;  // entries of each ring; a power of two
inline constexpr uint32_t kCauseBytes = 1024;

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// What a submission asks for. Values travel in shared memory and messages: never renumber.
inline constexpr uint8_t kOpAllreduce = 1;
inline constexpr uint8_t kOpBroadcast = 2;
inline constexpr uint8_t kOpBarrier = 3;    // bucket 0
inline constexpr uint8_t kOpAllgather = 4;  // reduce_op 0
inline constexpr uint8_t kOpReduceScatter = 5;

// Of an allreduce: every layer goes densely, so that residuals empty.
inline constexpr uint8_t kSubmissionFlush = 1u;

inline constexpr uint32_t kBarrierBucket = 0;  // every job has this bucket of no elements

struct Submission {
  uint64_t user_data;  // comes back in the completion
  uint64_t sequence;   // per bucket, from 1, without gaps
  double scale;        // loss scaling, > 0 and finite; 1 by default
  uint32_t bucket;
  uint32_t root;      // rank; broadcast only, else 0
  uint8_t operation;  // kOp...
  uint8_t reduce_op;  // compress::ReduceOp
  uint8_t dtype;      // compress::Dtype of the bucket, checked; of a barrier 0
  uint8_t flags;      // kSubmission...
  uint8_t reserved[28];
};
static_assert(sizeof(Submission) == 64 && std::is_trivially_copyable_v<Submission>);

struct Completion {
  uint64_t user_data;
  uint64_t sequence;
  uint32_t bucket;
  int32_t status;        // gw_status; 0 is success
  uint32_t result_slot;  // 0 for now
  uint32_t flags;        // bit 0: the result was not finite on some rank and is NaN everywhere;
                         // of a reduce_scatter: this node's shards, here
  uint8_t reserved[32];
};
static_assert(sizeof(Completion) == 64 && std::is_trivially_copyable_v<Completion>);
inline constexpr uint32_t kCompletionNotFinite = 1u;

// One direction's counters, each on a cache line of its own.
struct alignas(kCacheLine) RingControl {
  std::atomic<uint64_t> tail;  // producer
  uint8_t pad0[56];
  std::atomic<uint64_t> head;  // consumer
  uint8_t pad1[56];
  std::atomic<uint32_t> sleeping;  // consumer sets, producer exchanges
  uint8_t pad2[60];
};
static_assert(sizeof(RingControl) == 192);

struct alignas(kCacheLine) SessionHeader {
  // Written once before the descriptor is passed.
  uint64_t magic;
  uint32_t layout_version;  // the daemon's; the client refuses what it does not know
  uint32_t ring_capacity;
  uint64_t total_bytes;        // of the memfd
  uint64_t generation;         // of the session within the daemon's life, never 0
  uint32_t submission_offset;  // bytes
  uint32_t completion_offset;
  uint32_t rank;
  uint32_t world;
  uint8_t reserved0[16];

  // The end of the epoch. The daemon writes cause (NUL-terminated UTF-8), then stores status (release; pairs
  // with the client's acquire load); 0 while the epoch lives. Written at most once.
  std::atomic<int32_t> abort_status;
  uint8_t reserved1[60];
  char abort_cause[kCauseBytes];

  // The daemon's engine stores the time of its last look here (CLOCK_MONOTONIC ns, relaxed): a client that
  // waits can tell a wedged daemon from a slow network.
  std::atomic<uint64_t> daemon_heartbeat_ns;
  uint8_t reserved2[56];

  RingControl submissions;
  RingControl completions;
};
static_assert(offsetof(SessionHeader, abort_status) == 64);
static_assert(offsetof(SessionHeader, abort_cause) == 128);
static_assert(offsetof(SessionHeader, daemon_heartbeat_ns) == 1152);
static_assert(offsetof(SessionHeader, submissions) == 1216);
static_assert(offsetof(SessionHeader, completions) == 1408);
static_assert(sizeof(SessionHeader) == 1600);

inline constexpr uint32_t kSubmissionOffset = 4096;
inline constexpr uint32_t kCompletionOffset = kSubmissionOffset + kRingCapacity * sizeof(Submission);
inline constexpr uint64_t kSessionBytes = kCompletionOffset + kRingCapacity * sizeof(Completion);

}  // namespace gradwire::layout
