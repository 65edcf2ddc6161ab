// EngineThread with real time, real bells and UCX on loopback: trainers are threads of the test.
#include "daemon/engine/engine_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <future>
#include <thread>

#include "daemon/engine/snapshot.h"
#include "tests/engine/test_session.h"
#include "transport/sim/sim_network.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::engine {
namespace {

constexpr int kTimeoutMs = 30'000;
constexpr uint32_t kLocals = 2;

class Events final : public Listener {
 public:
  void on_job_failed(JobId, const Status& cause) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    failures_.push_back(cause);
  }
  void on_stall(const Stall&) override {}
  void on_progress_after_stall(JobId, uint32_t, uint64_t) override {}
  std::vector<Status> failures() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failures_;
  }

 private:
  std::mutex mutex_;
  std::vector<Status> failures_;
};

struct Daemon {
  Events events;
  std::vector<std::unique_ptr<TestSession>> sessions;
  std::vector<std::vector<float>> gradients;
  std::vector<float> result;
  std::unique_ptr<EngineThread> thread;  // ends before what it uses
};

// Runs a command on the engine's thread and waits for what it returns.
template <typename T>
T call(EngineThread& thread, std::function<T(Engine&)> command) {
  std::promise<T> promise;
  thread.post([&](Engine& engine) { promise.set_value(command(engine)); });
  return promise.get_future().get();
}

class Ring {
 public:
  Ring(uint32_t nodes, size_t elements, uint64_t spin_ns) : nodes_(nodes) {
    for (uint32_t i = 0; i < nodes; ++i) {
      transport::UcxOptions ucx;
      ucx.net_devices = "lo";
      auto transport = transport::make_ucx_transport(ucx);
      EXPECT_TRUE(transport.ok()) << transport.status().message();
      daemons_.push_back(std::make_unique<Daemon>());
      EngineThreadOptions options;
      options.spin_ns = spin_ns;
      max_payload_ = (*transport)->max_payload();
      hosts_ = (*transport)->hosts();
      daemons_[i]->thread = std::make_unique<EngineThread>(std::move(transport).value(), daemons_[i]->events,
                                                           EngineOptions{}, options);
      EXPECT_TRUE(daemons_[i]->thread->start().ok());
      for (uint32_t k = 0; k < kLocals; ++k) {
        daemons_[i]->sessions.push_back(std::make_unique<TestSession>(i * kLocals + k));
        daemons_[i]->gradients.emplace_back(elements, static_cast<float>(i * kLocals + k + 1));
      }
      daemons_[i]->result.resize(elements);
    }
    for (uint32_t i = 0; i < nodes; ++i) {
      const Status status = call<Status>(*daemons_[i]->thread, [&](Engine& engine) {
        GRADWIRE_RETURN_IF_ERROR(engine.add_job(job(i)));
        return engine.add_bucket(bucket(i, elements));
      });
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  ~Ring() {
    for (const auto& daemon : daemons_) {
      call<bool>(*daemon->thread, [](Engine& engine) {
        engine.remove_job(1);
        return true;
      });
    }
  }
  Daemon& operator[](uint32_t node) { return *daemons_[node]; }

  // Every rank in its own thread: `steps` allreduces and a barrier each.
  void train(uint64_t steps) {
    std::vector<std::thread> trainers;
    for (const auto& daemon : daemons_) {
      for (const auto& session : daemon->sessions) {
        trainers.emplace_back([&session, steps] {
          for (uint64_t step = 1; step <= steps; ++step) {
            session->submit(1, step, layout::kOpAllreduce);
            const auto reduced = session->wait(kTimeoutMs);
            ASSERT_TRUE(reduced.has_value()) << "step " << step;
            ASSERT_EQ(reduced->status, 0);
            session->submit(0, step, layout::kOpBarrier);
            const auto met = session->wait(kTimeoutMs);
            ASSERT_TRUE(met.has_value()) << "step " << step;
            ASSERT_EQ(met->status, 0);
          }
        });
      }
    }
    for (std::thread& trainer : trainers) {
      trainer.join();
    }
    const auto ranks = static_cast<float>(nodes_ * kLocals);
    for (const auto& daemon : daemons_) {
      for (const float value : daemon->result) {
        ASSERT_EQ(value, ranks * (ranks + 1) / 2);
      }
    }
  }

 private:
  JobSpec job(uint32_t index) {
    JobSpec spec;
    spec.id = 1;
    spec.name = "loopback";
    spec.key[0] = std::byte{7};
    spec.nodes = nodes_;
    spec.node_index = index;
    for (uint32_t i = 0; i < nodes_; ++i) {
      spec.rank_node.insert(spec.rank_node.end(), kLocals, i);
    }
    for (const auto& session : daemons_[index]->sessions) {
      spec.local_ranks.push_back(session->local());
    }
    for (const auto& daemon : daemons_) {
      spec.members.push_back({"", daemon->thread->transport_address(), hosts_});  // all are on this host
    }
    return spec;
  }
  BucketSpec bucket(uint32_t index, size_t elements) {
    compress::BucketShape shape;
    shape.layers.push_back({"layer", elements});
    shape.nodes = nodes_;
    shape.max_message_bytes = static_cast<uint32_t>(max_payload_);
    BucketSpec spec;
    spec.job = 1;
    spec.bucket = 1;
    spec.reducer = std::move(compress::make_exact_reducer(shape, compress::Dtype::kFloat32)).value();
    spec.elements = elements;
    for (const std::vector<float>& gradient : daemons_[index]->gradients) {
      spec.gradients.push_back(gradient.data());
    }
    spec.result = daemons_[index]->result.data();
    return spec;
  }

  const uint32_t nodes_;
  size_t max_payload_ = 0;
  std::vector<std::string> hosts_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(EngineThread, AveragesOverUcxOnLoopback) {
  for (const uint64_t spin_ns : {uint64_t{20'000}, uint64_t{0}}) {
    Ring ring(2, 300'001, spin_ns);
    ring.train(20);
    EXPECT_TRUE(ring[0].events.failures().empty());
    EXPECT_TRUE(ring[1].events.failures().empty());
  }
}

TEST(EngineThread, KeepsSmallOperationsGoingBetweenThreeNodes) {
  Ring ring(3, 100, 20'000);
  ring.train(200);
}

TEST(EngineThread, UsesNoProcessorWhileIdleAndShowsAHeartbeat) {
  Ring ring(2, 10, 20'000);
  ring.train(1);
  const auto beat = [&] {
    return ring[0].sessions[0]->session()->daemon_heartbeat_ns.load(std::memory_order_relaxed);
  };
  const uint64_t before = beat();
  const double cpu = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_LT(cpu_seconds() - cpu, 0.15);
  EXPECT_GT(beat(), before);
  ring[0].sessions[0]->submit(0, 2, layout::kOpBarrier);  // wakes up again
  ring[0].sessions[1]->submit(0, 2, layout::kOpBarrier);
  ring[1].sessions[0]->submit(0, 2, layout::kOpBarrier);
  ring[1].sessions[1]->submit(0, 2, layout::kOpBarrier);
  EXPECT_TRUE(ring[1].sessions[1]->wait(kTimeoutMs).has_value());
}

TEST(EngineThread, WakesSleepingRanksWhenTheJobIsAborted) {
  Ring ring(2, 10, 0);
  std::thread trainer([&] {
    ring[0].sessions[0]->submit(1, 1, layout::kOpAllreduce);
    const auto completion = ring[0].sessions[0]->wait(kTimeoutMs);
    ASSERT_TRUE(completion.has_value());
    EXPECT_NE(completion->status, 0);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ring[0].thread->post([](Engine& engine) { engine.abort_job(1, Status(Code::kAborted, "rank 3 died")); });
  trainer.join();
  layout::SessionHeader* const session = ring[0].sessions[1]->session();
  EXPECT_NE(session->abort_status.load(std::memory_order_acquire), 0);
  EXPECT_STREQ(session->abort_cause, "rank 3 died");
}

TEST(EngineThread, RunsCommandsFromManyThreadsInOrder) {
  transport::SimNetwork network;
  Events events;
  EngineThread thread(network.create_node("alone"), events, EngineOptions{}, EngineThreadOptions{});
  ASSERT_TRUE(thread.start().ok());
  std::vector<std::vector<int>> seen(4);  // written on the engine's thread only
  std::vector<std::thread> posters;
  for (size_t p = 0; p < seen.size(); ++p) {
    posters.emplace_back([&, p] {
      for (int i = 0; i < 1000; ++i) {
        thread.post([&seen, p, i](Engine&) { seen[p].push_back(i); });
      }
    });
  }
  for (std::thread& poster : posters) {
    poster.join();
  }
  thread.stop();
  for (const std::vector<int>& numbers : seen) {
    ASSERT_EQ(numbers.size(), 1000u);
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  }
}

}  // namespace
}  // namespace gradwire::engine
