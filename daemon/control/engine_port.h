// The engine as the control plane sees it: calls that travel to the engine's thread in order, and answers
// that come back on the control thread. Tests put a fake here.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/control/scheduler.h"
#include "daemon/engine/engine.h"

namespace gradwire::control {

struct Traffic {
  uint64_t operations = 0, raw_bytes = 0, wire_bytes = 0;
};

class EnginePort {
 public:
  using Done = std::function<void(const Status&)>;
  using Left = std::function<void(const Result<std::vector<engine::BucketSequence>>&)>;

  virtual ~EnginePort() = default;

  virtual void add_job(engine::JobSpec spec, Done done) = 0;
  virtual void add_bucket(engine::BucketSpec spec, Done done) = 0;
  virtual void remove_bucket(engine::JobId job, uint32_t bucket, Done done) = 0;
  virtual void leave_rank(engine::JobId job, uint32_t rank, Left done) = 0;
  virtual void note_rank_left(engine::JobId job, uint32_t rank, std::vector<engine::BucketSequence> last) = 0;
  virtual void abort_job(engine::JobId job, Status cause) = 0;
  virtual void remove_job(engine::JobId job) = 0;
  virtual void inspect(engine::JobId job, uint32_t bucket, uint64_t sequence,
                       std::function<void(engine::OperationView)> done) = 0;
  // What the job has completed here, per bucket; asked before remove_job, after which it is lost.
  virtual void completed(engine::JobId job,
                         std::function<void(std::vector<engine::BucketSequence>)> done) = 0;
  // Engine::take_results.
  virtual void take_results(engine::JobId job,
                            std::function<void(std::vector<engine::ResultSample>)> done) = 0;
  // `look` runs on the engine's thread and is short (Engine::look).
  virtual void look(engine::JobId job, uint32_t bucket, engine::Engine::Look look, Done done) = 0;
  virtual void traffic(engine::JobId job, std::function<void(const Traffic&)> done) = 0;
  // Engine::probe; no answer where the job ends before, or measures already.
  virtual void probe(engine::JobId job, std::function<void(const engine::ProbeTimes&)> done) = 0;
  // Engine's calls of these names. `idle` runs on the engine's thread. What change_bucket() has replaced is
  // freed by whoever holds `change`.
  virtual void hold_bucket(engine::JobId job, uint32_t bucket,
                           std::function<void(const Result<uint64_t>&)> done) = 0;
  virtual void let_begin(engine::JobId job, uint32_t bucket, uint64_t from, engine::Engine::Idle idle,
                         Done done) = 0;
  virtual void change_bucket(engine::JobId job, uint32_t bucket, std::shared_ptr<engine::BucketChange> change,
                             Done done) = 0;
  virtual void go_on(engine::JobId job, uint32_t bucket) = 0;
};

// Work that takes long (memory to be zeroed) beside the control thread; `then` runs on the control thread.
class Workshop {
 public:
  virtual ~Workshop() = default;
  virtual void run(Work work, Work then) = 0;
};

// Lets go of it in the workshop: freeing large memory takes milliseconds. What the workshop is asked for
// afterwards finds it freed.
inline void release_in(Workshop& workshop, std::shared_ptr<void> what) {
  workshop.run([what = std::move(what)]() mutable { what = nullptr; }, [] {});
}

}  // namespace gradwire::control
