// Reads a daemon's counters page without its help.
//
// The file belongs to somebody else: it may be short, foreign, cut off while it is read, or written by a
// daemon that stopped in the middle of a record. It is therefore read with pread (a mapping of a file that is
// cut off kills the reader) and every record is checked by its sequence lock. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/layout/counters_layout.h"
#include "config/base/result.h"

namespace gradwire::tools {

// Copies of the records, text bounded. `torn`: the writer did not finish the record while it was read; the
// values may belong to two moments.
struct JobCounters {
  bool torn = false;
  layout::JobState state{};
  uint64_t id = 0;
  std::string name, run_id;
  uint32_t uid = 0, world = 0, nodes = 0, node_index = 0;
  uint64_t epoch = 0, operations = 0;
  uint64_t raw_bytes = 0, payload_bytes = 0, header_bytes = 0;
  std::string cause;
};

struct RankCounters {
  bool torn = false;
  layout::RankState state{};
  uint64_t job = 0;
  uint32_t rank = 0;
  int32_t pid = 0;
  uint64_t submissions = 0, late_total_ns = 0, late_max_ns = 0;
};

struct BucketCounters {
  bool torn = false;
  layout::BucketPhase phase{};
  uint64_t job = 0;
  uint32_t bucket = 0, dtype = 0;
  std::string name, codec;
  uint64_t elements = 0, sequence = 0, operations = 0, not_finite = 0;
  uint64_t raw_bytes = 0, payload_bytes = 0, header_bytes = 0, received_bytes = 0, residual_bytes = 0;
  double density = 0, residual_norm = 0;
  uint32_t warm_stage = 0, missing_ranks = 0;
  uint64_t last_ns = 0, total_ns = 0, gather_total_ns = 0;
};

struct PeerCounters {
  bool torn = false;
  layout::PeerState state{};
  uint64_t job = 0;
  std::string node, ranks, address, path;
  uint64_t heartbeat_ns = 0;
};

struct CountersPage {
  bool locked = false;  // a living daemon holds the file
  int32_t pid = 0;
  uint64_t started_monotonic_ns = 0, started_unix_ns = 0, heartbeat_ns = 0;
  std::string version, node, transport;
  uint64_t records_dropped = 0;
  std::vector<JobCounters> jobs;
  std::vector<RankCounters> ranks;
  std::vector<BucketCounters> buckets;
  std::vector<PeerCounters> peers;
};

// The page at `path`. kNotFound: no such file; kPermissionDenied: it cannot be opened; kCorrupt: not a
// counters page, or cut off; kUnsupported: a page of another layout version.
Result<CountersPage> read_counters(const std::string& path);

// `<runtime_dir>/counters`.
std::string counters_path(const std::string& runtime_dir);

uint64_t monotonic_ns();

}  // namespace gradwire::tools
