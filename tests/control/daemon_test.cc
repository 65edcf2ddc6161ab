// gradwired as a user has it: real processes, real sockets, UCX on loopback, trainers through the C ABI.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "client/include/gradwire/gradwire.h"
#include "tests/control/processes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

Outcome failed(gw_status status) {
  return {status, gw_last_error(), 0};
}

class Daemons : public ::testing::Test {
 protected:
  // Nodes a and b.
  void start(const std::vector<std::string>& settings = {}) {
    for (const char* name : {"a", "b"}) {
      daemons_.push_back(std::make_unique<DaemonProcess>(root_.path(), name, settings));
    }
    for (const auto& daemon : daemons_) {
      ASSERT_TRUE(daemon->ready()) << daemon->log();
    }
  }
  void TearDown() override {
    if (HasFailure()) {
      for (const auto& daemon : daemons_) {
        std::fputs((daemon->name + ":\n" + daemon->log()).c_str(), stderr);
      }
    }
  }

  gw_status join(size_t node, int rank, int world, gw_job** job, int64_t timeout_ms = 20'000) const {
    return join_job("test", rank, world, daemons_[node]->socket,
                    "127.0.0.1:" + std::to_string(daemons_[0]->port), job, timeout_ms);
  }

  // Averages `count` times (rank + 1) over a bucket, and reports the first value of the last result.
  Outcome train(size_t node, int rank, int world, int count) const {
    gw_job* job = nullptr;
    if (const gw_status status = join(node, rank, world, &job); status != GW_OK) {
      return failed(status);
    }
    const gw_layer layers[] = {{"w", 100'000}, {"b", 10}};
    gw_bucket* bucket = nullptr;
    if (const gw_status status =
            gw_bucket_create(job, "b0", GW_FLOAT32, layers, 2, GW_BUCKET_GRADIENT, &bucket);
        status != GW_OK) {
      return failed(status);
    }
    Outcome outcome{GW_OK, "", 0};
    for (int i = 0; i < count; ++i) {
      auto* gradient = static_cast<float*>(gw_bucket_gradient(bucket));
      std::fill_n(gradient, gw_bucket_elements(bucket), static_cast<float>(rank + 1));
      gw_status status = gw_allreduce(bucket, GW_AVERAGE);
      status = status == GW_OK ? gw_wait(bucket, -1, nullptr) : status;
      if (status != GW_OK) {
        return failed(status);
      }
      outcome.value = static_cast<const float*>(gw_bucket_result(bucket))[100'009];
    }
    const gw_status status = gw_leave(job);
    return status == GW_OK ? outcome : failed(status);
  }

  std::vector<Trainer> trainers(int count) const {
    std::vector<Trainer> all;
    for (int rank = 0; rank < 4; ++rank) {
      all.emplace_back([this, rank, count] { return train(rank / 2, rank, 4, count); });
    }
    return all;
  }

  TemporaryDirectory root_;
  std::vector<std::unique_ptr<DaemonProcess>> daemons_;
};

constexpr int kForEver = 1'000'000;

TEST_F(Daemons, AverageAgainAndAgainAndStopInOrder) {
  start();
  for (int run = 0; run < 3; ++run) {
    for (Trainer& trainer : trainers(5)) {
      const auto outcome = trainer.outcome();
      ASSERT_TRUE(outcome);
      EXPECT_EQ(outcome->status, GW_OK) << outcome->message;
      EXPECT_EQ(outcome->value, 2.5);
    }
  }
  for (const auto& daemon : daemons_) {
    daemon->process.signal(SIGTERM);
    EXPECT_EQ(daemon->process.wait(seconds(10)), 0);
    EXPECT_NE(access(daemon->socket.c_str(), F_OK), 0);
  }
  EXPECT_THAT(daemons_[0]->log(), HasSubstr("event=results_compared job=test run=0 epoch=1 count=5\n"));
}

TEST_F(Daemons, AKilledTrainerIsNamedToAllOthersInTime) {
  start();
  auto all = trainers(kForEver);
  std::this_thread::sleep_for(seconds(1));
  const auto killed = Clock::now();
  all[3].process.signal(SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    const auto outcome = all[rank].outcome();
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->status, GW_ERR_ABORTED);
    EXPECT_THAT(outcome->message, HasSubstr("rank 3 on node b died"));
  }
  EXPECT_LT(Clock::now() - killed, seconds(5));
  for (Trainer& trainer : trainers(2)) {  // and the same job once more
    const auto outcome = trainer.outcome();
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->status, GW_OK) << outcome->message;
  }
}

TEST_F(Daemons, AKilledDaemonIsNamedToTheOthersAndNoticedByItsOwnTrainers) {
  start();
  auto all = trainers(kForEver);
  std::this_thread::sleep_for(seconds(1));
  const auto killed = Clock::now();
  daemons_[1]->process.signal(SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    const auto outcome = all[rank].outcome();
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->status, AnyOf(GW_ERR_ABORTED, GW_ERR_UNAVAILABLE));
    if (rank < 2) {
      EXPECT_THAT(outcome->message, HasSubstr("node b (ranks 2,3) is gone"));
    }
  }
  EXPECT_LT(Clock::now() - killed, seconds(5));
}

TEST_F(Daemons, AKilledCoordinatorIsNamed) {
  start();
  auto all = trainers(kForEver);
  std::this_thread::sleep_for(seconds(1));
  daemons_[0]->process.signal(SIGKILL);
  for (int rank = 2; rank < 4; ++rank) {
    const auto outcome = all[rank].outcome();
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->message, HasSubstr("node a (ranks 0,1), which coordinates the job, is gone"));
  }
}

TEST_F(Daemons, AStoppingDaemonTellsEverybody) {
  start();
  auto all = trainers(kForEver);
  std::this_thread::sleep_for(seconds(1));
  daemons_[1]->process.signal(SIGTERM);
  for (Trainer& trainer : all) {
    const auto outcome = trainer.outcome();
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->message, HasSubstr("node b is stopping"));
  }
  EXPECT_EQ(daemons_[1]->process.wait(seconds(10)), 0);
}

TEST_F(Daemons, ABucketThatDiffersIsAnErrorOnEveryRank) {
  start();
  std::vector<Trainer> all;
  for (int rank = 0; rank < 2; ++rank) {
    all.emplace_back([this, rank] {
      gw_job* job = nullptr;
      gw_status status = join(static_cast<size_t>(rank), rank, 2, &job);
      const gw_layer layer = {"w", rank == 0 ? 100u : 101u};
      gw_bucket* bucket = nullptr;
      status = status == GW_OK ? gw_bucket_create(job, "b0", GW_FLOAT32, &layer, 1, 0, &bucket) : status;
      return failed(status);
    });
  }
  for (Trainer& trainer : all) {
    const auto outcome = trainer.outcome();
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->status, GW_ERR_MISMATCH);
    EXPECT_THAT(outcome->message, HasSubstr("layer 0 'w' has 10"));
  }
}

TEST_F(Daemons, ARankThatNeverComesIsNamed) {
  start();
  Trainer lonely([this] {
    gw_job* job = nullptr;
    return failed(join(1, 1, 3, &job, 1500));
  });
  const auto outcome = lonely.outcome(seconds(8));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status, GW_ERR_TIMEOUT);
  EXPECT_THAT(outcome->message, HasSubstr("ranks 0,2 of 3"));
}

TEST_F(Daemons, ARankThatNeverSubmitsIsNamedAtTheDeadline) {
  start({"clocks.operation_timeout=2s", "clocks.stall_warning=500ms"});
  std::vector<Trainer> all;
  for (int rank = 0; rank < 2; ++rank) {
    all.emplace_back([this, rank] {
      gw_job* job = nullptr;
      gw_status status = join(static_cast<size_t>(rank), rank, 2, &job);
      const gw_layer layer = {"w", 100};
      gw_bucket* bucket = nullptr;
      status = status == GW_OK ? gw_bucket_create(job, "b0", GW_FLOAT32, &layer, 1, 0, &bucket) : status;
      if (status == GW_OK && rank == 1) {
        std::this_thread::sleep_for(seconds(30));
      }
      status = status == GW_OK ? gw_allreduce(bucket, GW_SUM) : status;
      status = status == GW_OK ? gw_wait(bucket, -1, nullptr) : status;
      return failed(status);
    });
  }
  const auto outcome = all[0].outcome(seconds(10));
  ASSERT_TRUE(outcome);
  EXPECT_THAT(outcome->message, HasSubstr("'b0' #1 waits for rank 1 (node b)"));
  EXPECT_THAT(daemons_[0]->log(), HasSubstr("event=stall"));
}

TEST_F(Daemons, ASecondOneIsRefusedAndALeftoverIsReplaced) {
  start();
  ChildProcess second = run_program(daemon_arguments(root_.path(), "a", 0, {}), root_.path() + "/second.log");
  EXPECT_EQ(second.wait(seconds(10)), 1);
  daemons_[0]->process.signal(SIGKILL);
  daemons_[0]->process.wait(seconds(10));
  EXPECT_EQ(access(daemons_[0]->socket.c_str(), F_OK), 0);
  daemons_[0] = std::make_unique<DaemonProcess>(root_.path(), "a", std::vector<std::string>{});
  EXPECT_TRUE(daemons_[0]->ready()) << daemons_[0]->log();
}

TEST_F(Daemons, AWrongConfigurationHasAnExitCodeOfItsOwn) {
  const std::string log = root_.path() + "/log";
  EXPECT_EQ(run_program({GRADWIRED_BINARY, "--set", "clocks.peer_timeout=-1s"}, log).wait(seconds(10)), 78);
  EXPECT_EQ(run_program({GRADWIRED_BINARY, "--check-config"}, log).wait(seconds(10)), 0);
  EXPECT_EQ(run_program({GRADWIRED_BINARY, "--check-config", "/nonexistent.yaml"}, log).wait(seconds(10)),
            78);
  EXPECT_EQ(run_program({GRADWIRED_BINARY, "--dump-config"}, log).wait(seconds(10)), 0);
  EXPECT_EQ(run_program({GRADWIRED_BINARY, "--version"}, log).wait(seconds(10)), 0);
  EXPECT_EQ(run_program(daemon_arguments(root_.path(), "c", 0, {"peers.key_file=/nonexistent"}), log)
                .wait(seconds(10)),
            78);
  for (const char* place : {"counters", "gradwired.sock", "gradwired.lock"}) {
    const std::string name = "of-" + std::string(place);
    std::filesystem::create_directories(root_.path() + "/" + name + "/" + place);
    EXPECT_EQ(run_program(daemon_arguments(root_.path(), name, 0, {}), log).wait(seconds(10)), 78) << place;
  }
}

}  // namespace
}  // namespace gradwire::control::testing
