// The EnginePort over the engine's thread: posts there, answers here.
#pragma once

#include <memory>

#include "daemon/control/engine_port.h"
#include "daemon/engine/engine_thread.h"

namespace gradwire::control {

class ThreadEnginePort final : public EnginePort {
 public:
  // `control`: its post() takes calls from any thread, and must do so until the engine's thread has stopped.
  ThreadEnginePort(engine::EngineThread& thread, Scheduler& control) : thread_(thread), control_(control) {}

  void add_job(engine::JobSpec spec, Done done) override;
  void add_bucket(engine::BucketSpec spec, Done done) override;
  void remove_bucket(engine::JobId job, uint32_t bucket, Done done) override;
  void leave_rank(engine::JobId job, uint32_t rank, Left done) override;
  void note_rank_left(engine::JobId job, uint32_t rank, std::vector<engine::BucketSequence> last) override;
  void abort_job(engine::JobId job, Status cause) override;
  void remove_job(engine::JobId job) override;
  void inspect(engine::JobId job, uint32_t bucket, uint64_t sequence,
               std::function<void(engine::OperationView)> done) override;
  void completed(engine::JobId job, std::function<void(std::vector<engine::BucketSequence>)> done) override;
  void take_results(engine::JobId job, std::function<void(std::vector<engine::ResultSample>)> done) override;
  void look(engine::JobId job, uint32_t bucket, engine::Engine::Look look, Done done) override;
  void traffic(engine::JobId job, std::function<void(const Traffic&)> done) override;
  void probe(engine::JobId job, std::function<void(const engine::ProbeTimes&)> done) override;
  void hold_bucket(engine::JobId job, uint32_t bucket,
                   std::function<void(const Result<uint64_t>&)> done) override;
  void let_begin(engine::JobId job, uint32_t bucket, uint64_t from, engine::Engine::Idle idle,
                 Done done) override;
  void change_bucket(engine::JobId job, uint32_t bucket, std::shared_ptr<engine::BucketChange> change,
                     Done done) override;
  void go_on(engine::JobId job, uint32_t bucket) override;

 private:
  // Runs `ask` on the engine's thread and `done` with what it returned on the control thread.
  template <typename Ask, typename Reply>
  void call(Ask ask, Reply done) {
    thread_.post([this, ask = std::move(ask), done = std::move(done)](engine::Engine& engine) mutable {
      control_.post([done = std::move(done), answer = ask(engine)] { done(answer); });
    });
  }

  engine::EngineThread& thread_;
  Scheduler& control_;
};

}  // namespace gradwire::control
