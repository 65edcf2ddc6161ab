#include "daemon/control/thread_engine_port.h"

namespace gradwire::control {

using engine::Engine;

void ThreadEnginePort::add_job(engine::JobSpec spec, Done done) {
  call([spec = std::move(spec)](Engine& engine) mutable { return engine.add_job(std::move(spec)); },
       std::move(done));
}

void ThreadEnginePort::add_bucket(engine::BucketSpec spec, Done done) {
  // A posted function can be copied, a BucketSpec cannot.
  auto shared = std::make_shared<engine::BucketSpec>(std::move(spec));
  call([shared](Engine& engine) { return engine.add_bucket(std::move(*shared)); }, std::move(done));
}

void ThreadEnginePort::remove_bucket(engine::JobId job, uint32_t bucket, Done done) {
  call([job, bucket](Engine& engine) { return engine.remove_bucket(job, bucket); }, std::move(done));
}

void ThreadEnginePort::leave_rank(engine::JobId job, uint32_t rank, Left done) {
  call([job, rank](Engine& engine) { return engine.leave_rank(job, rank); }, std::move(done));
}

void ThreadEnginePort::note_rank_left(engine::JobId job, uint32_t rank,
                                      std::vector<engine::BucketSequence> last) {
  thread_.post(
      [job, rank, last = std::move(last)](Engine& engine) { engine.note_rank_left(job, rank, last); });
}

void ThreadEnginePort::abort_job(engine::JobId job, Status cause) {
  thread_.post([job, cause = std::move(cause)](Engine& engine) { engine.abort_job(job, cause); });
}

void ThreadEnginePort::remove_job(engine::JobId job) {
  thread_.post([job](Engine& engine) { engine.remove_job(job); });
}

void ThreadEnginePort::inspect(engine::JobId job, uint32_t bucket, uint64_t sequence,
                               std::function<void(engine::OperationView)> done) {
  call([job, bucket, sequence](Engine& engine) { return engine.inspect(job, bucket, sequence); },
       std::move(done));
}

void ThreadEnginePort::completed(engine::JobId job,
                                 std::function<void(std::vector<engine::BucketSequence>)> done) {
  call([job](Engine& engine) { return engine.completed(job); }, std::move(done));
}

void ThreadEnginePort::take_results(engine::JobId job,
                                    std::function<void(std::vector<engine::ResultSample>)> done) {
  call([job](Engine& engine) { return engine.take_results(job); }, std::move(done));
}

void ThreadEnginePort::look(engine::JobId job, uint32_t bucket, Engine::Look look, Done done) {
  call([job, bucket, look = std::move(look)](Engine& engine) { return engine.look(job, bucket, look); },
       std::move(done));
}

void ThreadEnginePort::traffic(engine::JobId job, std::function<void(const Traffic&)> done) {
  call(
      [job](Engine& engine) {
        const engine::JobTraffic sums = engine.traffic(job);
        return Traffic{sums.operations, sums.raw_bytes, sums.payload_bytes + sums.header_bytes};
      },
      std::move(done));
}

void ThreadEnginePort::probe(engine::JobId job, std::function<void(const engine::ProbeTimes&)> done) {
  thread_.post([this, job, done = std::move(done)](Engine& engine) {
    const auto answer = [this, done](const engine::ProbeTimes& times) {
      control_.post([done, times] { done(times); });
    };
    // Where it is refused the job is over, or the answer to the first request comes.
    [[maybe_unused]] const Status status = engine.probe(job, answer);
  });
}

void ThreadEnginePort::hold_bucket(engine::JobId job, uint32_t bucket,
                                   std::function<void(const Result<uint64_t>&)> done) {
  call([job, bucket](Engine& engine) { return engine.hold_bucket(job, bucket); }, std::move(done));
}

void ThreadEnginePort::let_begin(engine::JobId job, uint32_t bucket, uint64_t from, Engine::Idle idle,
                                 Done done) {
  call([job, bucket, from,
        idle = std::move(idle)](Engine& engine) { return engine.let_begin(job, bucket, from, idle); },
       std::move(done));
}

void ThreadEnginePort::change_bucket(engine::JobId job, uint32_t bucket,
                                     std::shared_ptr<engine::BucketChange> change, Done done) {
  call([job, bucket, change = std::move(change)](
           Engine& engine) { return engine.change_bucket(job, bucket, change.get()); },
       std::move(done));
}

void ThreadEnginePort::go_on(engine::JobId job, uint32_t bucket) {
  thread_.post([job, bucket](Engine& engine) { engine.go_on(job, bucket); });
}

}  // namespace gradwire::control
