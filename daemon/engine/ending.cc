// Buckets, epochs and jobs end.
#include <algorithm>
#include <cstring>
#include <utility>

#include "client/include/gradwire/gradwire.h"
#include "config/base/one_line.h"
#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

void write_abort(layout::SessionHeader& session, const std::string& cause) {
  const std::string_view shown = beginning(cause, layout::kCauseBytes - 1);
  std::memcpy(session.abort_cause, shown.data(), shown.size());
  session.abort_cause[shown.size()] = '\0';
  // Pairs with the client's acquire load: who sees the status sees the cause.
  session.abort_status.store(GW_ERR_ABORTED, std::memory_order_release);
}

}  // namespace

Status Core::remove_bucket(JobId id, uint32_t number) {
  Job* const job = find(id);
  Bucket* const bucket = job == nullptr ? nullptr : job->buckets.find(number);
  if (bucket == nullptr || bucket->removed || bucket->spec.reducer == nullptr ||
      number == layout::kBarrierBucket) {
    return Status(Code::kNotFound,
                  "job " + std::to_string(id) + " has no bucket " + std::to_string(number) + " to remove");
  }
  if (!job->aborted && (bucket->operation.state == OperationState::kRunning || bucket->gather.count > 0)) {
    return Status(Code::kUnavailable,
                  operation_label(*bucket, bucket->operation.sequence) + " is in flight: wait for it first");
  }
  if (bucket->operation.state == OperationState::kDone || bucket->operation.pending_sends > 0) {
    bucket->removed = true;  // retire() frees it
  } else {
    free_bucket(*bucket);
  }
  return ok_status();
}

void Core::abort_job(JobId id, const Status& cause) {
  Job* const job = find(id);
  if (job == nullptr || job->aborted) {
    return;
  }
  job->failed = job->reported = job->aborted = true;
  job->cause = cause;
  for (RankState& rank : job->ranks) {
    write_abort(*rank.spec.session, cause.message());
  }
  for (Link& link : job->links) {
    drop_sends(link.queue);
    link.ready_hook.unlink();
  }
  for (const std::unique_ptr<Bucket>& bucket : job->storage) {
    const uint64_t sequence = bucket->gather.count > 0 ? bucket->gather.sequence : bucket->operation.sequence;
    cancel(*bucket);
    complete_ranks(*bucket, sequence, GW_ERR_ABORTED, 0);
    retire_if_over(*bucket);
  }
  // Also who has nothing in flight may be asleep.
  for (RankState& rank : job->ranks) {
    wake_rank(rank);
  }
}

void Core::remove_job(JobId id) {
  Job* const job = find(id);
  if (job == nullptr) {
    return;
  }
  abort_job(id, Status(Code::kAborted, "job \"" + job->spec.name + "\" has ended on " +
                                           node_label(*job, job->spec.node_index)));
  disconnect(*job);
  for (const std::unique_ptr<Bucket>& bucket : job->storage) {
    drop_early(*bucket);
    hand_back(bucket->spec);
  }
  by_key_.erase(epoch_hash(job->spec.key));
  std::erase_if(jobs_, [job](const std::unique_ptr<Job>& held) { return held.get() == job; });
  ++jobs_version_;
  // Who stays admitted for too long could only send what has no job any more.
  [[maybe_unused]] const Status status = admit_members();
}

// The reducer, with its residuals as the last commit left them, outlives its bucket where somebody wants it.
void Core::hand_back(BucketSpec& spec) {
  if (spec.retired && spec.reducer != nullptr) {
    std::exchange(spec.retired, nullptr)(std::move(spec.reducer));
  }
}

}  // namespace gradwire::engine
