// A bucket gets another reducer or algorithm between two operations.
#include <utility>

#include "daemon/engine/core.h"

namespace gradwire::engine {

Result<Bucket*> Core::find_held(JobId id, uint32_t number) const {
  Bucket* const bucket = find(id, number);
  if (bucket == nullptr || bucket->removed || bucket->hold == nullptr || bucket->job->aborted) {
    return Status(Code::kNotFound, "job " + std::to_string(id) + " has no bucket " + std::to_string(number) +
                                       " whose operations are held back");
  }
  return bucket;
}

Result<uint64_t> Core::hold_bucket(JobId id, uint32_t number) {
  Bucket* const bucket = find(id, number);
  if (bucket == nullptr || bucket->removed || bucket->own || bucket->spec.reducer == nullptr ||
      bucket->job->aborted || number == layout::kBarrierBucket) {
    return Status(Code::kNotFound,
                  "job " + std::to_string(id) + " has no bucket " + std::to_string(number) + " to hold");
  }
  if (bucket->hold != nullptr) {
    return Status(Code::kAlreadyExists, bucket_label(bucket->spec.name, number) + " is held already");
  }
  bucket->hold = std::make_unique<Hold>();
  bucket->hold->from = bucket->operation.sequence + 1;
  return bucket->hold->from;
}

Status Core::let_begin(JobId id, uint32_t number, uint64_t from, Engine::Idle idle) {
  const Result<Bucket*> found = find_held(id, number);
  GRADWIRE_RETURN_IF_ERROR(found.status());
  Bucket& bucket = **found;
  Hold& hold = *bucket.hold;
  if (from <= bucket.operation.sequence || hold.idle || hold.changing) {
    return {Code::kInvalidArgument, bucket_label(bucket.spec.name, number) + ": a change before operation " +
                                        std::to_string(from) + " comes too late or twice; operation " +
                                        std::to_string(bucket.operation.sequence) + " has begun"};
  }
  hold.from = from;
  hold.idle = std::move(idle);
  begin_if_ready(bucket);
  return ok_status();
}

Status Core::change_bucket(JobId id, uint32_t number, BucketChange* change) {
  const Result<Bucket*> found = find_held(id, number);
  GRADWIRE_RETURN_IF_ERROR(found.status());
  Bucket& bucket = **found;
  Job& job = *bucket.job;
  BucketSpec& spec = bucket.spec;
  if (!bucket.hold->changing || change->reducer == nullptr) {
    return {Code::kUnavailable,
            bucket_label(spec.name, number) + " still works with the reducer that it has"};
  }
  const auto swap = [&spec, change] {
    std::swap(spec.reducer, change->reducer);
    std::swap(spec.algorithm, change->algorithm);
    std::swap(spec.retired, change->retired);
    std::swap(spec.plan, change->plan);
  };
  swap();
  const bool direct = is_direct(job, spec);
  Status status = check(job, spec);
  if (status.ok() && spec.reducer->dtype() != change->reducer->dtype()) {
    status = Status(Code::kInvalidArgument, bucket_label(spec.name, number) + ": the dtype cannot change");
  }
  if (status.ok() && direct) {
    status = admit_all(job);
  }
  if (!status.ok()) {
    swap();
    return status;
  }
  bucket.hold->changing = false;
  bucket.counters.plan_operations = bucket.counters.plan_total_ns = 0;
  ++bucket.counters.plan_changes;
  set_reducer(bucket, direct);
  // Ranks that have submitted what comes next did it under the old plan.
  if (bucket.gather.count > 0 && bucket.gather.signature.operation == layout::kOpAllreduce) {
    bucket.gather.signature.direct = direct;
    bucket.gather.signature.layout = bucket.layout;
  } else if (bucket.gather.count > 0 && bucket.gather.signature.operation == layout::kOpBroadcast) {
    bucket.gather.signature.layout = bucket.layout;
  }
  return ok_status();
}

void Core::go_on(JobId id, uint32_t number) {
  const Result<Bucket*> found = find_held(id, number);
  if (found.ok() && !(*found)->hold->changing) {
    (*found)->hold.reset();
    begin_if_ready(**found);
  }
}

// Starts what all local ranks have submitted, unless the operation before is not over or a change of plan
// holds it back.
void Core::begin_if_ready(Bucket& bucket) {
  if (bucket.job->failed || bucket.operation.state != OperationState::kIdle) {
    return;
  }
  Hold* const hold = bucket.hold.get();
  if (hold != nullptr && hold->idle && bucket.operation.sequence + 1 == hold->from) {
    hold->changing = true;
    std::exchange(hold->idle, nullptr)(*bucket.spec.reducer);
  }
  const bool held = hold != nullptr && bucket.gather.sequence >= hold->from;
  if (bucket.gather.count == bucket.job->ranks.size() && !held) {
    start(bucket);
  }
}

}  // namespace gradwire::engine
