// What the engine knows of a job, as plain values: the source of the counters page. Fields mean what the
// records of the same name in client/layout/counters_layout.h say.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/layout/counters_layout.h"
#include "daemon/engine/engine.h"

namespace gradwire::engine {

struct RankSnapshot {
  uint32_t rank = 0;
  bool left = false;
  uint64_t submissions = 0;
  uint64_t late_total_ns = 0;
  uint64_t late_max_ns = 0;
  uint64_t late_count = 0;
};

struct BucketCounters {
  uint64_t operations = 0, not_finite = 0;
  uint64_t raw_bytes = 0, payload_bytes = 0, header_bytes = 0, received_bytes = 0;
  uint64_t last_ns = 0, total_ns = 0, gather_total_ns = 0;
  // Of a sample of the segments: what its elements took to sum and encode, and to decode.
  uint64_t hop_ns = 0, hop_elements = 0;
  uint64_t decode_ns = 0, decode_elements = 0;
  // Allreduces under the plan of now, and what all plans have saved against exact ones; may be negative.
  uint64_t plan_operations = 0, plan_total_ns = 0;
  int64_t saved_ns = 0;
  uint32_t plan_changes = 0;
};

struct BucketSnapshot : BucketCounters {
  uint32_t bucket = 0;
  uint32_t dtype = 0;
  std::shared_ptr<const std::string> name;  // its beginning, as much as the page shows; nullptr: none
  std::string codec;
  layout::BucketPhase phase = layout::BucketPhase::kIdle;
  uint64_t elements = 0;
  uint64_t sequence = 0;
  uint64_t residual_bytes = 0;
  double density = 1.0;
  double residual_norm = 0.0;
  uint32_t warm_stage = 0;
  uint32_t missing_ranks = 0;
  uint32_t hop = 0, hops = 0;
  uint32_t waits_for_node = UINT32_MAX;
  uint32_t operation = 0;
  std::shared_ptr<const PlanFacts> plan;  // nullptr: none
};

struct JobSnapshot : JobTraffic {
  uint64_t id = 0;                      // 0: no such job
  bool aborted = false;                 // abort_job was called
  std::vector<RankSnapshot> ranks;      // local ones
  std::vector<BucketSnapshot> buckets;  // by id; the barrier's bucket 0 included
};

// What does not belong to a job.
struct EngineCounters {
  uint64_t unknown_key = 0;  // messages dropped: no job here has their key
  uint64_t malformed = 0;    // messages dropped: too short to carry a key
  uint64_t after_end = 0;    // messages dropped: their job has failed or was aborted
  uint64_t polls = 0;
};

}  // namespace gradwire::engine
