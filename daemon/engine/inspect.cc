// What the engine tells about itself.
#include <algorithm>

#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"
#include "daemon/engine/view.h"

namespace gradwire::engine {

namespace {

BucketSnapshot snapshot_of(const Core& core, const Bucket& bucket) {
  const compress::CompressionStats stats = bucket.spec.reducer->stats();
  const OperationView view = phase_of(core, bucket, sequence_of(bucket));
  const bool gathering = view.phase == layout::BucketPhase::kGathering;
  BucketSnapshot out;
  static_cast<BucketCounters&>(out) = bucket.counters;
  out.bucket = bucket.id;
  out.dtype = bucket.dtype;
  out.name = bucket.shown_name;
  out.codec = bucket.spec.reducer->codec_name();
  out.phase = view.phase;
  out.elements = bucket.spec.elements;
  out.sequence = view.sequence;
  out.residual_bytes = stats.residual_bytes;
  out.density = stats.density;
  out.residual_norm = stats.residual_norm;
  out.warm_stage = stats.warm_stage;
  out.missing_ranks = gathering ? count_missing(bucket, view.sequence) : 0;
  out.hop = view.hop;
  out.hops = view.hops;
  out.waits_for_node = view.waits_for_node;
  out.operation = (gathering ? bucket.gather.signature : bucket.operation.signature).operation;
  out.plan = bucket.spec.plan;
  return out;
}

}  // namespace

OperationView Core::inspect(JobId id, uint32_t number, uint64_t sequence) const {
  const Bucket* const bucket = find(id, number);
  return bucket == nullptr || bucket->spec.reducer == nullptr ? OperationView{}
                                                              : view_of(*this, *bucket, sequence);
}

Status Core::look(JobId id, uint32_t number, const Engine::Look& look) const {
  const Bucket* const bucket = find(id, number);
  if (bucket == nullptr || bucket->removed || bucket->spec.reducer == nullptr) {
    return Status(Code::kNotFound, "job " + std::to_string(id) + " has no bucket " + std::to_string(number));
  }
  if (bucket->operation.state == OperationState::kRunning) {
    return Status(Code::kUnavailable,
                  operation_label(*bucket, bucket->operation.sequence) + " is in flight: wait for it first");
  }
  if (bucket->hold != nullptr && bucket->hold->changing) {
    return Status(Code::kAborted, bucket_label(bucket->spec.name, number) + " gets another reducer");
  }
  return look(*bucket->spec.reducer);
}

std::vector<BucketSequence> Core::completed(JobId id) const {
  std::vector<BucketSequence> last;
  const Job* const job = find(id);
  if (job == nullptr) {
    return last;
  }
  for (const std::unique_ptr<Bucket>& bucket : job->storage) {
    if (bucket->counters.operations > 0) {
      BucketSequence entry;
      entry.bucket = bucket->id;
      entry.sequence = bucket->counters.operations;  // sequence numbers have no gaps
      last.push_back(entry);
    }
  }
  return last;
}

Stall Core::stall_of(const Bucket& bucket, uint64_t now, bool deadline) const {
  Stall stall;
  stall.job = bucket.job->spec.id;
  stall.bucket = bucket.id;
  stall.bucket_name = bucket.spec.name;
  stall.sequence = sequence_of(bucket);
  stall.waited_ns = now - bucket.clock_ns;
  stall.view = view_of(*this, bucket, stall.sequence);
  stall.deadline = deadline;
  return stall;
}

JobSnapshot Core::snapshot(JobId id) const {
  JobSnapshot out;
  const Job* const job = find(id);
  if (job == nullptr) {
    return out;
  }
  out.id = id;
  out.aborted = job->aborted;
  static_cast<JobTraffic&>(out) = job->traffic;
  out.ranks.reserve(job->ranks.size());
  for (const RankState& rank : job->ranks) {
    RankSnapshot entry;
    entry.rank = rank.spec.rank;
    entry.left = rank.left;
    entry.submissions = rank.submitted;
    entry.late_total_ns = rank.late_total_ns;
    entry.late_max_ns = rank.late_max_ns;
    entry.late_count = rank.late_count;
    out.ranks.push_back(entry);
  }
  out.buckets.reserve(job->storage.size());
  for (const std::unique_ptr<Bucket>& bucket : job->storage) {
    if (bucket->spec.reducer != nullptr && !bucket->removed && !bucket->own) {
      out.buckets.push_back(snapshot_of(*this, *bucket));
    }
  }
  // Nearly always in order: only buckets that other nodes used first may be elsewhere.
  const auto by_number = [](const BucketSnapshot& a, const BucketSnapshot& b) { return a.bucket < b.bucket; };
  if (!std::is_sorted(out.buckets.begin(), out.buckets.end(), by_number)) {
    std::sort(out.buckets.begin(), out.buckets.end(), by_number);
  }
  return out;
}

JobTraffic Core::traffic(JobId id) const {
  const Job* const job = find(id);
  return job == nullptr ? JobTraffic{} : job->traffic;
}

std::vector<ResultSample> Core::take_results(JobId id) {
  Job* const job = find(id);
  return job == nullptr ? std::vector<ResultSample>() : job->samples.take();
}

std::vector<OperationId> Core::in_flight() const {
  std::vector<OperationId> operations;
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->aborted) {
      continue;
    }
    for (const std::unique_ptr<Bucket>& bucket : job->storage) {
      if (bucket->own) {
        continue;
      }
      if (bucket->operation.state != OperationState::kIdle) {
        operations.push_back({job->spec.id, bucket->id, bucket->operation.sequence});
      }
      if (bucket->gather.count > 0) {
        operations.push_back({job->spec.id, bucket->id, bucket->gather.sequence});
      }
    }
  }
  std::sort(operations.begin(), operations.end());
  return operations;
}

std::vector<JobId> Core::jobs() const {
  std::vector<JobId> ids;
  for (const std::unique_ptr<Job>& job : jobs_) {
    ids.push_back(job->spec.id);
  }
  return ids;
}

std::vector<int> Core::bell_fds() const {
  std::vector<int> fds;
  for (const std::unique_ptr<Job>& job : jobs_) {
    for (const RankState& rank : job->ranks) {
      if (rank.spec.bell_fd >= 0) {
        fds.push_back(rank.spec.bell_fd);
      }
    }
  }
  return fds;
}

}  // namespace gradwire::engine
