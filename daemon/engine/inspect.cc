// What the engine tells about itself.
#include <algorithm>

#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

layout::BucketPhase phase_of(const Bucket& bucket) {
  if (bucket.gather.count > 0) {
    return layout::BucketPhase::kGathering;
  }
  switch (bucket.operation.state) {
    case OperationState::kRunning:
      return bucket.operation.gathering ? layout::BucketPhase::kDistributing : layout::BucketPhase::kReducing;
    case OperationState::kDone:
      return layout::BucketPhase::kDone;
    case OperationState::kIdle:
      break;
  }
  return layout::BucketPhase::kIdle;
}

BucketSnapshot snapshot_of(const Bucket& bucket) {
  const compress::CompressionStats stats = bucket.spec.reducer->stats();
  BucketSnapshot out;
  out.bucket = bucket.id;
  out.dtype = bucket.dtype;
  out.name = bucket.spec.name;
  out.codec = bucket.spec.reducer->codec_name();
  out.phase = phase_of(bucket);
  out.elements = bucket.spec.elements;
  out.sequence = bucket.gather.count > 0 ? bucket.gather.sequence : bucket.operation.sequence;
  out.operations = bucket.counters.operations;
  out.not_finite = bucket.counters.not_finite;
  out.raw_bytes = bucket.counters.raw_bytes;
  out.payload_bytes = bucket.counters.payload_bytes;
  out.header_bytes = bucket.counters.header_bytes;
  out.received_bytes = bucket.counters.received_bytes;
  out.residual_bytes = stats.residual_bytes;
  out.density = stats.density;
  out.residual_norm = stats.residual_norm;
  out.warm_stage = stats.warm_stage;
  if (bucket.gather.count > 0) {
    out.missing_ranks = static_cast<uint32_t>(bucket.ranks.size()) - bucket.gather.count;
  }
  out.last_ns = bucket.counters.last_ns;
  out.total_ns = bucket.counters.total_ns;
  out.gather_total_ns = bucket.counters.gather_total_ns;
  return out;
}

}  // namespace

std::vector<uint32_t> Core::missing_ranks(JobId id, uint32_t number, uint64_t sequence) const {
  std::vector<uint32_t> missing;
  const Job* const job = find(id);
  const Bucket* const bucket = job == nullptr ? nullptr : job->buckets.find(number);
  if (bucket != nullptr) {
    for (size_t i = 0; i < bucket->ranks.size(); ++i) {
      if (bucket->ranks[i].last < sequence) {
        missing.push_back(job->ranks[i].spec.rank);
      }
    }
  }
  return missing;
}

JobSnapshot Core::snapshot(JobId id) const {
  JobSnapshot out;
  const Job* const job = find(id);
  if (job == nullptr) {
    return out;
  }
  out.id = id;
  out.name = job->spec.name;
  out.world = static_cast<uint32_t>(job->spec.rank_node.size());
  out.nodes = job->spec.nodes;
  out.node_index = job->spec.node_index;
  out.failed = job->failed;
  out.aborted = job->aborted;
  out.cause = job->cause;
  out.operations = job->operations;
  out.raw_bytes = job->raw_bytes;
  out.payload_bytes = job->payload_bytes;
  out.header_bytes = job->header_bytes;
  for (const RankState& rank : job->ranks) {
    RankSnapshot entry;
    entry.rank = rank.spec.rank;
    entry.left = rank.left;
    entry.submissions = rank.submitted;
    entry.late_total_ns = rank.late_total_ns;
    entry.late_max_ns = rank.late_max_ns;
    out.ranks.push_back(entry);
  }
  for (const std::unique_ptr<Bucket>& bucket : job->storage) {
    if (bucket->spec.reducer != nullptr && !bucket->removed) {
      out.buckets.push_back(snapshot_of(*bucket));
    }
  }
  std::sort(out.buckets.begin(), out.buckets.end(),
            [](const BucketSnapshot& a, const BucketSnapshot& b) { return a.bucket < b.bucket; });
  return out;
}

std::vector<JobId> Core::jobs() const {
  std::vector<JobId> ids;
  for (const std::unique_ptr<Job>& job : jobs_) {
    ids.push_back(job->spec.id);
  }
  return ids;
}

std::vector<int> Core::submit_fds() const {
  std::vector<int> fds;
  for (const std::unique_ptr<Job>& job : jobs_) {
    for (const RankState& rank : job->ranks) {
      if (rank.spec.submit_fd >= 0) {
        fds.push_back(rank.spec.submit_fd);
      }
    }
  }
  return fds;
}

}  // namespace gradwire::engine
