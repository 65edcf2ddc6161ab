#include "daemon/engine/engine.h"

#include "daemon/engine/core.h"

namespace gradwire::engine {

Engine::Engine(Clock& clock, transport::Transport& transport, Listener& listener,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(clock, transport, listener, options)) {}

Engine::~Engine() = default;

Status Engine::add_job(JobSpec spec) {
  return impl_->core.add_job(std::move(spec));
}

Status Engine::add_bucket(BucketSpec spec) {
  if (spec.bucket == layout::kBarrierBucket) {
    return Status(Code::kInvalidArgument, "bucket 0 is the barrier's; buckets are numbered from 1");
  }
  if (spec.bucket >= kFirstProbeBucket) {
    return Status(Code::kInvalidArgument, "bucket " + std::to_string(spec.bucket) +
                                              " is the engine's own; buckets are numbered below " +
                                              std::to_string(kFirstProbeBucket));
  }
  return impl_->core.add_bucket(std::move(spec));
}

Status Engine::remove_bucket(JobId job, uint32_t bucket) {
  return impl_->core.remove_bucket(job, bucket);
}

Result<std::vector<BucketSequence>> Engine::leave_rank(JobId job, uint32_t rank) {
  return impl_->core.leave_rank(job, rank);
}

void Engine::note_rank_left(JobId job, uint32_t rank, std::span<const BucketSequence> last) {
  impl_->core.note_rank_left(job, rank, last);
}

void Engine::abort_job(JobId job, const Status& cause) {
  impl_->core.abort_job(job, cause);
}

void Engine::remove_job(JobId job) {
  impl_->core.remove_job(job);
}

OperationView Engine::inspect(JobId job, uint32_t bucket, uint64_t sequence) const {
  return impl_->core.inspect(job, bucket, sequence);
}

Status Engine::look(JobId job, uint32_t bucket, const Look& look) const {
  return impl_->core.look(job, bucket, look);
}

std::vector<BucketSequence> Engine::completed(JobId job) const {
  return impl_->core.completed(job);
}

size_t Engine::poll() {
  return impl_->core.poll();
}

size_t Engine::poll_rings() {
  return impl_->core.poll_rings();
}

bool Engine::busy() const {
  return impl_->core.busy();
}

bool Engine::prepare_sleep() {
  return impl_->core.prepare_sleep();
}

void Engine::wake() {
  impl_->core.wake();
}

uint64_t Engine::next_deadline_ns() const {
  return impl_->core.next_deadline_ns();
}

Status Engine::probe(JobId job, Probed done) {
  return impl_->core.probe(job, std::move(done));
}

Result<uint64_t> Engine::hold_bucket(JobId job, uint32_t bucket) {
  return impl_->core.hold_bucket(job, bucket);
}

Status Engine::let_begin(JobId job, uint32_t bucket, uint64_t from, Idle idle) {
  return impl_->core.let_begin(job, bucket, from, std::move(idle));
}

Status Engine::change_bucket(JobId job, uint32_t bucket, BucketChange* change) {
  return impl_->core.change_bucket(job, bucket, change);
}

void Engine::go_on(JobId job, uint32_t bucket) {
  impl_->core.go_on(job, bucket);
}

JobSnapshot Engine::snapshot(JobId job) const {
  return impl_->core.snapshot(job);
}

JobTraffic Engine::traffic(JobId job) const {
  return impl_->core.traffic(job);
}

std::vector<ResultSample> Engine::take_results(JobId job) {
  return impl_->core.take_results(job);
}

std::vector<OperationId> Engine::in_flight() const {
  return impl_->core.in_flight();
}

std::vector<JobId> Engine::jobs() const {
  return impl_->core.jobs();
}

EngineCounters Engine::counters() const {
  return impl_->core.counters();
}

std::vector<int> Engine::bell_fds() const {
  return impl_->core.bell_fds();
}

uint64_t Engine::jobs_version() const {
  return impl_->core.jobs_version();
}

}  // namespace gradwire::engine
