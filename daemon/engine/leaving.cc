// Ranks that leave, jobs that fail.
#include <algorithm>

#include "daemon/engine/core.h"

namespace gradwire::engine {

Result<std::vector<BucketSequence>> Core::leave_rank(JobId id, uint32_t rank) {
  Job* const job = find(id);
  size_t local = 0;
  while (job != nullptr && local < job->ranks.size() && job->ranks[local].spec.rank != rank) {
    ++local;
  }
  if (job == nullptr || local == job->ranks.size() || job->ranks[local].left) {
    return Status(Code::kNotFound, "job " + std::to_string(id) + " has no rank " + std::to_string(rank) +
                                       " on this node that could leave");
  }
  if (!job->failed) {
    Turn all;
    all.steps = layout::kRingCapacity;
    all.segments_end = UINT64_MAX;
    poll_rank(*job, static_cast<uint32_t>(local), all);  // what it submitted before it left counts
  }
  job->ranks[local].left = true;
  std::vector<BucketSequence> last;
  for (const std::unique_ptr<Bucket>& bucket : job->storage) {
    if (!bucket->ranks.empty() && !bucket->own) {
      BucketSequence entry;
      entry.bucket = bucket->id;
      entry.sequence = bucket->ranks[local].last;
      last.push_back(entry);
    }
  }
  note_rank_left(id, rank, last);
  return last;
}

void Core::note_rank_left(JobId id, uint32_t rank, std::span<const BucketSequence> last) {
  Job* const job = find(id);
  if (job == nullptr) {
    return;
  }
  job->any_left = true;
  job->left_rank = rank;
  for (const std::unique_ptr<Bucket>& bucket : job->storage) {
    if (bucket->own) {
      continue;
    }
    const auto entry = std::find_if(last.begin(), last.end(), [&bucket](const BucketSequence& candidate) {
      return candidate.bucket == bucket->id;
    });
    const uint64_t sequence = entry == last.end() ? 0 : entry->sequence;
    if (sequence < bucket->last_allowed) {
      bucket->last_allowed = sequence;
      bucket->left_rank = rank;
    }
    check_left(*bucket);
  }
}

// Fails the job if an operation is in flight that a rank which left will never submit.
bool Core::check_left(Bucket& bucket) {
  Job& job = *bucket.job;
  const bool gathering = bucket.gather.count > 0;
  if (!gathering && bucket.operation.state != OperationState::kRunning) {
    return true;
  }
  const uint64_t sequence = gathering ? bucket.gather.sequence : bucket.operation.sequence;
  if (sequence <= bucket.last_allowed) {
    return true;
  }
  const uint32_t node =
      bucket.left_rank < job.spec.rank_node.size() ? job.spec.rank_node[bucket.left_rank] : 0;
  fail(job, Status(Code::kAborted, operation_label(bucket, sequence) + " can never complete: rank " +
                                       std::to_string(bucket.left_rank) + " on " + node_label(job, node) +
                                       " has left the job after operation " +
                                       std::to_string(bucket.last_allowed)));
  return false;
}

// The first cause counts. Operations stay as they are until abort_job.
void Core::fail(Job& job, Status cause) {
  if (job.failed) {
    return;
  }
  job.failed = true;
  job.cause = std::move(cause);
  failures_ = true;
}

// Another node is gone. With nothing in flight it may have ended its part in order: the next operation tells.
void Core::lose(Job& job, uint32_t node, const Status& why) {
  if (job.failed || !job.lost.ok()) {
    return;
  }
  job.lost = Status(Code::kUnavailable, "the connection from " + node_label(job, job.spec.node_index) +
                                            " to " + node_label(job, node) + " is lost: " + why.message());
  if (job.running > 0) {
    fail(job, job.lost);
  }
}

void Core::report_failures() {
  failures_ = false;
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->failed && !job->reported) {
      job->reported = true;
      listener_.on_job_failed(job->spec.id, job->cause.with_context("job \"" + job->spec.name + "\""));
    }
  }
}

}  // namespace gradwire::engine
