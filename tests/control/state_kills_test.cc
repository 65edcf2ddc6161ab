// Trainers and daemons that are killed in the middle of saving and loading a compression state.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/control/processes.h"

namespace gradwire::control::testing {
namespace {

using std::chrono::seconds;

constexpr uint64_t kKilledElements = 1'000'000;  // a state of four windows
constexpr int kKilled = 128 + SIGKILL;

// Room for one job with its bucket, what it leaves behind, and one transfer: what leaks is missed soon.
const std::vector<std::string> kTightly = {"quotas.bytes_per_user=36MiB", "compression.codec=l8"};

Outcome outcome_of(gw_status status, double value = 0) {
  return {status, status == GW_OK ? "" : gw_last_error(), value};
}

// A bucket with residuals in the job.
gw_status begin(gw_job* job) {
  const gw_layer layer = {"w", kKilledElements};
  gw_bucket* bucket = nullptr;
  gw_status status = gw_bucket_create(job, "b0", GW_FLOAT32, &layer, 1, GW_BUCKET_GRADIENT, &bucket);
  if (status == GW_OK) {
    auto* const gradient = static_cast<float*>(gw_bucket_gradient(bucket));
    for (uint64_t i = 0; i < kKilledElements; ++i) {
      gradient[i] = static_cast<float>(i % 1013) * 1e-3F;
    }
    status = gw_allreduce(bucket, GW_SUM);
  }
  return status == GW_OK ? gw_wait(bucket, 20'000, nullptr) : status;
}

struct Through {
  int parts = 0;
  int last = INT32_MAX;  // with this part comes the end
  pid_t victim = 0;      // whose
  int signal = SIGKILL;
  std::string bytes;  // that went, or are to go
  size_t at = 0;

  bool ends() {
    if (++parts < last) {
      return false;
    }
    kill(victim == 0 ? getpid() : victim, signal);
    return true;
  }
  static int write(void* user, const void* data, size_t size) {
    auto* const self = static_cast<Through*>(user);
    self->ends();
    self->bytes.append(static_cast<const char*>(data), size);
    return 0;
  }
  static int64_t read(void* user, void* data, size_t size) {
    auto* const self = static_cast<Through*>(user);
    self->ends();
    const size_t count = std::min(size, self->bytes.size() - self->at);
    std::memcpy(data, self->bytes.data() + self->at, count);
    self->at += count;
    return static_cast<int64_t>(count);
  }
};

Outcome save_from(const std::string& socket, Through through, const std::string& file = "", int rank = 0,
                  int world = 1) {
  gw_job* job = nullptr;
  gw_status status = join_job("kills", rank, world, socket, "", &job);
  status = status == GW_OK ? begin(job) : status;
  status = status == GW_OK ? gw_state_save(job, Through::write, &through) : status;
  if (status == GW_OK && !file.empty()) {
    std::ofstream(file, std::ios::binary) << through.bytes;
  }
  status = status == GW_OK ? gw_barrier(job, 20'000) : status;
  return outcome_of(status, static_cast<double>(through.bytes.size()));
}

Outcome load_into(const std::string& socket, Through through) {
  gw_job* job = nullptr;
  gw_status status = join_job("kills", 0, 1, socket, "", &job);
  status = status == GW_OK ? gw_state_load(job, Through::read, &through) : status;
  status = status == GW_OK ? begin(job) : status;
  return outcome_of(status, static_cast<double>(through.at));
}

std::string text_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(StateKills, TrainersThatDieWhileTheySaveOrLoadLeaveNothingBehind) {
  TemporaryDirectory root;
  DaemonProcess daemon(root.path(), "a", kTightly);
  ASSERT_TRUE(daemon.ready()) << daemon.log();
  const std::string file = root.path() + "/state";
  {
    Trainer first([&] { return save_from(daemon.socket, {}, file); });
    const auto outcome = first.outcome(seconds(30));
    ASSERT_TRUE(outcome) << daemon.log();
    ASSERT_EQ(outcome->status, GW_OK) << outcome->message;
    EXPECT_GT(outcome->value, 4.0 * kKilledElements);
    first.process.wait(seconds(10));
  }
  const std::string state = text_of(file);
  const size_t descriptors = open_descriptors(daemon.process.pid());
  for (int round = 0; round < 12; ++round) {
    Through through;
    through.last = 1 + round % 4;
    Trainer saves([&] { return save_from(daemon.socket, through); });
    EXPECT_EQ(saves.process.wait(seconds(30)), kKilled)
        << "round " << round << ": " << saves.outcome().value_or(Outcome()).message << daemon.log();
    through.bytes = state;
    Trainer loads([&] { return load_into(daemon.socket, through); });
    EXPECT_EQ(loads.process.wait(seconds(30)), kKilled)
        << "round " << round << ": " << loads.outcome().value_or(Outcome()).message << daemon.log();
  }
  Through whole;
  whole.bytes = state;
  Trainer last([&] { return load_into(daemon.socket, whole); });
  const auto outcome = last.outcome(seconds(30));
  ASSERT_TRUE(outcome) << daemon.log();
  EXPECT_EQ(outcome->status, GW_OK) << outcome->message << daemon.log();
  last.process.wait(seconds(10));
  EXPECT_TRUE(eventually([&] { return open_descriptors(daemon.process.pid()) <= descriptors; }));
}

TEST(StateKills, ADaemonThatDiesMeanwhileIsAnErrorSoon) {
  for (const bool saving : {true, false}) {
    TemporaryDirectory root;
    DaemonProcess daemon(root.path(), "a", kTightly);
    ASSERT_TRUE(daemon.ready()) << daemon.log();
    Through through;
    if (!saving) {
      const std::string file = root.path() + "/state";
      Trainer first([&] { return save_from(daemon.socket, {}, file); });
      ASSERT_EQ(first.outcome(seconds(30)).value_or(Outcome()).status, GW_OK) << daemon.log();
      first.process.wait(seconds(10));
      through.bytes = text_of(file);
    }
    through.last = 2;
    through.victim = daemon.process.pid();
    Trainer trainer(
        [&] { return saving ? save_from(daemon.socket, through) : load_into(daemon.socket, through); });
    const auto outcome = trainer.outcome(seconds(20));
    ASSERT_TRUE(outcome) << "it hangs";
    EXPECT_EQ(outcome->status, GW_ERR_UNAVAILABLE) << outcome->message;
  }
}

TEST(StateKills, ADaemonThatIsStoppedMeanwhileEndsInOrder) {
  for (int part = 1; part <= 4; ++part) {
    TemporaryDirectory root;
    DaemonProcess daemon(root.path(), "a", kTightly);
    ASSERT_TRUE(daemon.ready()) << daemon.log();
    Through through;
    through.last = part;
    through.victim = daemon.process.pid();
    through.signal = SIGTERM;
    Trainer trainer([&] { return save_from(daemon.socket, through); });
    const auto outcome = trainer.outcome(seconds(20));
    ASSERT_TRUE(outcome) << "it hangs";
    EXPECT_TRUE(outcome->status == GW_OK || outcome->status == GW_ERR_ABORTED ||
                outcome->status == GW_ERR_UNAVAILABLE)
        << outcome->message;
    EXPECT_EQ(daemon.process.wait(seconds(20)), 0) << daemon.log();
  }
}

TEST(StateKills, RanksThatSaveTogetherGetTheSameAndADeathAmongThemEndsTheOthers) {
  TemporaryDirectory root;
  DaemonProcess daemon(root.path(), "a", {"compression.codec=l8"});
  ASSERT_TRUE(daemon.ready()) << daemon.log();
  for (const bool dies : {false, true}) {
    std::vector<Trainer> trainers;
    for (int rank = 0; rank < 3; ++rank) {
      trainers.emplace_back([&, rank] {
        Through through;
        through.last = dies && rank == 1 ? 2 : through.last;
        return save_from(daemon.socket, through, root.path() + "/state" + std::to_string(rank), rank, 3);
      });
    }
    for (int rank = 0; rank < 3; ++rank) {
      const auto outcome = trainers[rank].outcome(seconds(30));
      if (dies && rank == 1) {
        EXPECT_EQ(trainers[rank].process.wait(seconds(10)), kKilled);
        continue;
      }
      ASSERT_TRUE(outcome) << "rank " << rank << " hangs: " << daemon.log();
      EXPECT_EQ(outcome->status, dies ? GW_ERR_ABORTED : GW_OK) << outcome->message;
    }
    for (Trainer& trainer : trainers) {
      EXPECT_TRUE(trainer.process.wait(seconds(10)));
    }
    if (!dies) {
      const std::string state = text_of(root.path() + "/state0");
      EXPECT_GT(state.size(), 4 * kKilledElements);
      EXPECT_TRUE(text_of(root.path() + "/state1") == state);
      EXPECT_TRUE(text_of(root.path() + "/state2") == state);
    }
  }
  Trainer after([&] { return save_from(daemon.socket, {}); });
  const auto outcome = after.outcome(seconds(30));
  ASSERT_TRUE(outcome) << daemon.log();
  EXPECT_EQ(outcome->status, GW_OK) << outcome->message;
}

}  // namespace
}  // namespace gradwire::control::testing
