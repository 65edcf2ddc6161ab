// Reads a daemon's counters page without its help.
//
// The file belongs to somebody else: it may be short, foreign, cut off while it is read, or written by a
// daemon that stopped in the middle of a record. It is therefore read with pread (a mapping of a file that is
// cut off kills the reader) and every record is checked by its sequence lock. All functions are thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/layout/counters_layout.h"
#include "config/base/result.h"

namespace gradwire::tools {

// Every field that is read, said once: the structs below, and the reader, follow from these lists. N: number
// or text, as in the layout; E: an enumeration, stored as a uint32_t.
// clang-format off
#define GRADWIRE_HEADER_FIELDS(N)                                                             \
  N(pid) N(started_monotonic_ns) N(started_unix_ns) N(heartbeat_ns) N(version) N(node)        \
  N(transport) N(records_dropped) N(stopped_unix_ns) N(kept_bytes) N(kept_jobs)
#define GRADWIRE_JOB_FIELDS(N, E)                                                             \
  E(state, JobState) N(id) N(name) N(run_id) N(uid) N(world) N(nodes) N(node_index) N(epoch)  \
  N(operations) N(raw_bytes) N(payload_bytes) N(header_bytes) N(cause) N(ended_ns) N(stall)
#define GRADWIRE_RANK_FIELDS(N, E)                                                            \
  E(state, RankState) N(job) N(rank) N(pid) N(submissions) N(late_total_ns) N(late_max_ns)    \
  N(late_count)
#define GRADWIRE_BUCKET_FIELDS(N, E)                                                          \
  E(phase, BucketPhase) N(job) N(bucket) N(dtype) N(name) N(codec) N(elements) N(sequence)    \
  N(operations) N(not_finite) N(raw_bytes) N(payload_bytes) N(header_bytes) N(received_bytes) \
  N(residual_bytes) N(density) N(residual_norm) N(warm_stage) N(missing_ranks) N(last_ns)     \
  N(total_ns) N(gather_total_ns) N(hop) N(hops) N(waits_for_node) N(operation) N(plan)        \
  N(expected_ns) N(exact_ns) N(plan_operations) N(plan_total_ns) N(saved_ns) N(plan_changes)
#define GRADWIRE_PEER_FIELDS(N, E)                                                            \
  E(state, PeerState) N(job) N(node) N(ranks) N(address) N(path) N(heartbeat_ns) N(node_index)
// clang-format on

// What a field of the layout is read into; text is bounded by its field.
template <typename Field>
struct Readable {
  using Type = Field;
};
template <typename Value>
struct Readable<std::atomic<Value>> {
  using Type = Value;
};
template <size_t kSize>
struct Readable<char[kSize]> {
  using Type = std::string;
};

#define GRADWIRE_NUMBER(member) Readable<decltype(Record::member)>::Type member{};
#define GRADWIRE_ENUM(member, Type) layout::Type member{};

// Copies of the records. `torn`: the writer did not finish the record while it was read; the values may
// belong to two moments.
struct JobCounters {
  using Record = layout::JobRecord;
  bool torn = false;
  GRADWIRE_JOB_FIELDS(GRADWIRE_NUMBER, GRADWIRE_ENUM)
};
struct RankCounters {
  using Record = layout::RankRecord;
  bool torn = false;
  GRADWIRE_RANK_FIELDS(GRADWIRE_NUMBER, GRADWIRE_ENUM)
};
struct BucketCounters {
  using Record = layout::BucketRecord;
  bool torn = false;
  GRADWIRE_BUCKET_FIELDS(GRADWIRE_NUMBER, GRADWIRE_ENUM)
};
struct PeerCounters {
  using Record = layout::PeerRecord;
  bool torn = false;
  GRADWIRE_PEER_FIELDS(GRADWIRE_NUMBER, GRADWIRE_ENUM)
};
struct HeaderCounters {
  using Record = layout::CountersHeader;
  GRADWIRE_HEADER_FIELDS(GRADWIRE_NUMBER)
};

#undef GRADWIRE_NUMBER
#undef GRADWIRE_ENUM

struct CountersPage : HeaderCounters {
  bool locked = false;  // a living daemon holds the file
  std::vector<JobCounters> jobs;
  std::vector<RankCounters> ranks;
  std::vector<BucketCounters> buckets;
  std::vector<PeerCounters> peers;
};

// The page at `path`. kNotFound: no such file; kPermissionDenied: it cannot be opened; kCorrupt: not a
// counters page, or cut off; kUnsupported: a page of another layout version.
Result<CountersPage> read_counters(const std::string& path);

// Whether a living daemon holds the file at `path`, whatever is in it.
bool is_page_held(const std::string& path);

// `<runtime_dir>/counters`.
std::string counters_path(const std::string& runtime_dir);

uint64_t monotonic_ns();

}  // namespace gradwire::tools
