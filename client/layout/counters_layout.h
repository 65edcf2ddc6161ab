// The counters page: a file in the runtime directory that the daemon writes and `gradwire status` reads.
// Neither maps it: who cuts a mapped file off ends the process that touches it.
//
// Reading needs nobody's help, so status works when the daemon is wedged. A daemon holds an exclusive flock()
// on the file while it lives: a page without a lock is stale, a locked page whose heartbeat stands still is
// wedged. One thread writes. Every record has a sequence lock: `version` is odd while the record is being
// written; a reader reads version, record and version again, one pread each, and tries again if version was
// odd or has changed. A record with id 0 is free. Layout version 3; fixed-width fields only; tested byte for
// byte.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradwire::layout {

inline constexpr uint64_t kCountersMagic = 0x31304e5443525747;  // "GWRCTN01"
inline constexpr uint32_t kCountersVersion = 3;
inline constexpr uint32_t kCounterJobs = 64;
inline constexpr uint32_t kCounterRanks = 512;
inline constexpr uint32_t kCounterBuckets = 8192;
inline constexpr uint32_t kCounterPeers = 512;
inline constexpr const char* kCountersFile = "counters";  // within the runtime directory

enum class JobState : uint32_t { kFree = 0, kForming = 1, kRunning = 2, kAborted = 3, kEnded = 4 };
enum class BucketPhase : uint32_t {
  kIdle = 0,
  kGathering = 1,     // waits for local ranks to submit
  kReducing = 2,      // hops 0 .. P-2
  kDistributing = 3,  // hops P-1 .. 2P-3, and the bytes of a broadcast or an allgather
  kDone = 4,          // complete here; its last messages are under way
  kGranting = 5,      // has started here and waits for a node that it sends to, to start too
  kHeld = 6           // all local ranks have submitted, and a change of the bucket's plan holds it back
};
enum class RankState : uint32_t { kAttached = 1, kGone = 2, kLeft = 3 };
// kGone: the job has ended.
enum class PeerState : uint32_t { kConnecting = 1, kUp = 2, kLost = 3, kGone = 4 };

struct alignas(64) CountersHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;
  uint32_t jobs, ranks, buckets, peers;  // capacities of the tables that follow, in this order
  uint32_t job_bytes, rank_bytes, bucket_bytes, peer_bytes;  // sizes of their records
  int32_t pid;
  uint32_t reserved0;
  uint64_t started_monotonic_ns;
  uint64_t started_unix_ns;
  // CLOCK_MONOTONIC, stored at least once a second by the control thread when the engine has answered it: it
  // moves only while both do (relaxed).
  std::atomic<uint64_t> heartbeat_ns;
  char version[32];
  char node[256];
  char transport[32];                     // path in use, e.g. "tcp"
  std::atomic<uint64_t> records_dropped;  // records that find no free place at present (relaxed)
  std::atomic<uint64_t> stopped_unix_ns;  // the daemon stopped in an orderly way; 0 while it runs (relaxed)
  std::atomic<uint64_t> kept_bytes;       // residuals of jobs that are not there, until they expire (relaxed)
  std::atomic<uint64_t> kept_jobs;        // of how many jobs (relaxed)
};

struct alignas(64) JobRecord {
  std::atomic<uint32_t> version;
  uint32_t state;  // JobState
  uint64_t id;     // within the daemon's life, from 1
  char name[128], run_id[128];
  uint32_t uid, world, nodes, node_index;
  uint64_t epoch;          // first 64 bits of the epoch's key are NOT here: a counter per job identity
  uint64_t operations;     // completed allreduces
  uint64_t raw_bytes;      // what an uncompressed ring would have sent from this node
  uint64_t payload_bytes;  // sent, encoded
  uint64_t header_bytes;   // sent, ours
  char cause[512];         // why it ended
  uint64_t ended_ns;       // CLOCK_MONOTONIC; 0 while it lives
  char stall[512];         // whom an operation waits for, since stall_warning; empty: none stalls
};

struct alignas(64) RankRecord {
  std::atomic<uint32_t> version;
  uint32_t state;  // RankState
  uint64_t id;     // 1 + rank; 0 free
  uint64_t job;
  uint32_t rank;
  int32_t pid;
  uint64_t submissions;
  uint64_t late_total_ns;  // summed lateness behind the first local rank of each operation
  uint64_t late_max_ns;
  uint64_t late_count;  // operations in which it was late at all
};

struct alignas(64) BucketRecord {
  std::atomic<uint32_t> version;
  uint32_t phase;  // BucketPhase of the operation in flight
  uint64_t id;     // 1 + bucket; 0 free
  uint64_t job;
  uint32_t bucket;
  uint32_t dtype;
  char name[128];
  char codec[16];
  uint64_t elements;
  uint64_t sequence;  // of the operation in flight or the last one
  uint64_t operations, not_finite;
  uint64_t raw_bytes, payload_bytes, header_bytes;  // sent from this node
  uint64_t received_bytes;
  uint64_t residual_bytes;
  double density;  // last committed operation
  double residual_norm;
  uint32_t warm_stage;
  uint32_t missing_ranks;      // local ranks not yet there, while gathering
  uint64_t last_ns, total_ns;  // start (all local ranks submitted) to completion
  uint64_t gather_total_ns;    // first local submit to start
  uint32_t hop, hops;          // the operation in flight has reached hop `hop` of 0 .. hops - 1
  uint32_t waits_for_node;     // index of the neighbour that must send, start or take in; UINT32_MAX: none
  uint32_t operation;          // kOp... of session_layout.h, of the operation in flight or the last one
  char plan[72];               // how its allreduces are done; empty: not planned
  uint64_t expected_ns;        // what the plan expects of one; 0: nobody has measured
  uint64_t exact_ns;           // what an uncompressed one along the ring would take; 0 as above
  uint64_t plan_operations;    // allreduces since the plan is as it is
  uint64_t plan_total_ns;      // of these, start to completion
  int64_t saved_ns;            // sum of exact_ns less what it took, of all allreduces that had one
  uint32_t plan_changes;
  uint32_t reserved0;
};

struct alignas(64) PeerRecord {
  std::atomic<uint32_t> version;
  uint32_t state;  // PeerState
  uint64_t id;     // from 1; 0 free
  uint64_t job;
  char node[128];
  char ranks[128];        // "2,3"
  char address[128];      // control address
  char path[32];          // data path in use
  uint64_t heartbeat_ns;  // CLOCK_MONOTONIC of the last sign of life; 0 unknown
  uint32_t node_index;    // within the job's epoch
  uint32_t reserved0;
};

inline constexpr uint64_t kCountersBytes =
    sizeof(CountersHeader) + kCounterJobs * sizeof(JobRecord) + kCounterRanks * sizeof(RankRecord) +
    kCounterBuckets * sizeof(BucketRecord) + kCounterPeers * sizeof(PeerRecord);

}  // namespace gradwire::layout
