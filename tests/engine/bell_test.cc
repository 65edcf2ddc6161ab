// The bells of an engine in its own thread, whose clients mean harm. Two jobs share the engine: the client of
// one misuses its bell, that of the other works. Without UCX, so that the thread sanitizer can look on.
#include "daemon/engine/bell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "daemon/engine/engine_thread.h"
#include "tests/engine/lingering.h"
#include "tests/engine/test_session.h"
#include "transport/sim/sim_network.h"

namespace gradwire::engine {
namespace {

constexpr int kTimeoutMs = 30'000;

class Silent final : public Listener {
 public:
  void on_job_failed(JobId, const Status&) override { failures.fetch_add(1, std::memory_order_relaxed); }
  void on_stall(const Stall&) override {}
  void on_progress_after_stall(JobId, uint32_t, uint64_t) override {}
  std::atomic<int> failures{0};
};

// Jobs 1 and 2 of one rank each, on one engine.
class Bell : public testing::Test {
 protected:
  Bell() : hostile_(0), honest_(0), thread_(network_.create_node("alone"), listener_, {}, no_spin()) {
    EXPECT_TRUE(thread_.start().ok());
    add(1, hostile_);
    add(2, honest_);
  }
  ~Bell() override {
    thread_.stop();
    EXPECT_EQ(listener_.failures.load(std::memory_order_relaxed), 0);
  }
  static EngineThreadOptions no_spin() {
    EngineThreadOptions options;
    options.spin_ns = 0;
    return options;
  }
  void add(JobId id, TestSession& session) {
    thread_.post([&session, id](Engine& engine) {
      JobSpec spec;
      spec.id = id;
      spec.key[0] = static_cast<std::byte>(id);
      spec.rank_node = {0};
      spec.local_ranks.push_back(session.local());
      EXPECT_TRUE(engine.add_job(spec).ok());
    });
  }
  // The honest client's barriers, each of which lets the engine sleep in between.
  void work(uint64_t steps) { barriers(honest_, steps, &worked_); }
  void barriers(TestSession& session, uint64_t steps, uint64_t* done) {
    for (uint64_t i = 0; i < steps; ++i) {
      session.submit(0, ++*done, layout::kOpBarrier);
      const auto completion = session.wait(kTimeoutMs);
      ASSERT_TRUE(completion.has_value());
      ASSERT_EQ(completion->status, 0);
    }
  }
  // Processor time that the process takes while nobody works.
  static double idle_cpu_seconds() {
    const auto used = [] {
      timespec time{};
      ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double before = used();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return used() - before;
  }
  void fill() {
    std::array<char, 4096> bytes{};
    while (::send(hostile_.bell(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }

  transport::SimNetwork network_;
  Silent listener_;
  TestSession hostile_, honest_;
  uint64_t worked_ = 0, hostile_done_ = 0;
  EngineThread thread_;
};

TEST_F(Bell, WakesBothSides) {
  work(200);
  uint64_t done = 0;
  barriers(hostile_, 200, &done);
}

TEST_F(Bell, AClientThatNeverReadsItDelaysNobody) {
  ASSERT_EQ(::fcntl(hostile_.bell(), F_SETFL, 0), 0);  // blocking, on its side
  for (uint64_t step = 1; step <= 1000; ++step) {      // far more rings than the socket holds
    hostile_.session()->completions.sleeping.store(1, std::memory_order_seq_cst);  // as prepare_sleep()
    hostile_.submit(0, step, layout::kOpBarrier);
    while (!hostile_.take().has_value()) {
      std::this_thread::yield();
    }
  }
  work(50);
}

TEST_F(Bell, AClientThatFillsItDelaysNobody) {
  ASSERT_EQ(::fcntl(hostile_.bell(), F_SETFL, 0), 0);
  for (int i = 0; i < 20; ++i) {
    fill();
    work(5);
  }
  uint64_t done = 0;
  fill();
  barriers(hostile_, 5, &done);
}

TEST_F(Bell, AFloodOfRingsWithoutSubmissionsStarvesNobody) {
  std::atomic<bool> over{false};
  std::thread flood([&] {
    while (!over.load(std::memory_order_relaxed)) {
      fill();
    }
  });
  work(200);
  over.store(true, std::memory_order_relaxed);
  flood.join();
}

TEST_F(Bell, ABellThatIsShutDownOrClosedMakesNothingSpinAndItsRingsAreStillServed) {
  for (const int how : std::array<int, 4>{SHUT_RD, SHUT_WR, SHUT_RDWR, -1}) {
    how >= 0 ? void(::shutdown(hostile_.bell(), how)) : hostile_.close_bell();
    work(20);
    EXPECT_LT(idle_cpu_seconds(), 0.1) << how;
    hostile_.submit(0, hostile_done_ + 1, layout::kOpBarrier);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTimeoutMs);
    std::optional<layout::Completion> completion;
    while (!completion.has_value() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      completion = hostile_.take();
    }
    ASSERT_TRUE(completion.has_value()) << how;
    ++hostile_done_;
  }
}

TEST_F(Bell, AnUrgentByteMakesNothingSpin) {
  const char byte = 0;
  // Where the kernel has no urgent data on such sockets there is nothing to see.
  [[maybe_unused]] const ssize_t sent = ::send(hostile_.bell(), &byte, 1, MSG_OOB | MSG_NOSIGNAL);
  work(20);
  EXPECT_LT(idle_cpu_seconds(), 0.1);
}

constexpr int kLingerSeconds = kTimeoutMs / 1000 + 30;  // longer than work() waits

TEST_F(Bell, DescriptorsThatAClientSendsThroughItAreNotClosedByTheEngine) {
  Lingering connection(kLingerSeconds);
  const char ring = 1;
  ASSERT_EQ(::send(hostile_.bell(), &ring, 1, MSG_NOSIGNAL), 1);
  put_into(hostile_.bell(), connection, 0);
  work(50);
  connection.end();
}

TEST_F(Bell, NorAreThoseThatComeWithAnUrgentByte) {
  work(1);  // the engine watches by now
  Lingering connection(kLingerSeconds);
  put_into(hostile_.bell(), connection, MSG_OOB);
  ASSERT_TRUE(::send(hostile_.bell(), "", 1, MSG_NOSIGNAL) == 1);  // an ordinary one behind it
  work(50);
  connection.end();
}

}  // namespace
}  // namespace gradwire::engine
