// Trainers and daemons in pid, mount and user namespaces of their own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/control/processes.h"

namespace gradwire::control::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

gw_status join(const std::string& socket, int rank, int world, gw_job** job) {
  return join_job("contained", rank, world, socket, "", job);
}

// Joins as one of two and waits for ever in a barrier.
Outcome join_and_wait(const std::string& socket, int rank) {
  gw_job* job = nullptr;
  gw_status status = join(socket, rank, 2, &job);
  status = status == GW_OK ? gw_barrier(job, 20'000) : status;
  return {status, gw_last_error(), 0};
}

// Children of this process are in a pid namespace of their own from here on.
bool enter_pid_namespace(int more) {
  return unshare(CLONE_NEWPID | more) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID | more) == 0;
}
constexpr int kNoNamespaces = -77;

TEST(Containers, ATrainerInOneJoinsThroughABindMountAndItsDeathIsSeen) {
  TemporaryDirectory root;
  DaemonProcess daemon(root.path(), "a", {});
  ASSERT_TRUE(daemon.ready()) << daemon.log();
  const std::string inside = root.path() + "/inside";
  ASSERT_EQ(mkdir(inside.c_str(), 0700), 0);
  Trainer outside([&] { return join_and_wait(daemon.socket, 0); });
  Trainer contained([&]() -> Outcome {
    if (!enter_pid_namespace(CLONE_NEWNS) || mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(daemon.directory.c_str(), inside.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      return {kNoNamespaces, "", 0};
    }
    Trainer inner([&]() -> Outcome {
      gw_job* job = nullptr;
      const gw_status status = join(inside + "/gradwired.sock", 1, 2, &job);
      _exit(status == GW_OK && getpid() == 1 ? 0 : 1);  // without leaving
    });
    return {inner.process.wait(seconds(20)).value_or(-1), "", 0};
  });
  const auto result = contained.outcome();
  ASSERT_TRUE(result);
  if (result->status == kNoNamespaces) {
    GTEST_SKIP() << "this machine lets no test make pid and mount namespaces";
  }
  EXPECT_EQ(result->status, 0) << daemon.log();
  const auto other = outside.outcome();
  ASSERT_TRUE(other);
  EXPECT_EQ(other->status, GW_ERR_ABORTED);
  EXPECT_THAT(other->message, HasSubstr("rank 1 on node a died (pid "));
}

TEST(Containers, ADaemonInOneServesTrainersWhosePidItCannotSee) {
  TemporaryDirectory root;
  Trainer both([&]() -> Outcome {
    const int ours = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (!enter_pid_namespace(0)) {
      return {kNoNamespaces, "", 0};
    }
    DaemonProcess daemon(root.path(), "a", {});
    if (setns(ours, CLONE_NEWPID) != 0) {
      return {kNoNamespaces, "", 0};
    }
    if (!daemon.ready()) {
      return {-1, daemon.log(), 0};
    }
    Trainer first([&] { return join_and_wait(daemon.socket, 0); });
    Trainer second([&]() -> Outcome {
      gw_job* job = nullptr;
      _exit(join(daemon.socket, 1, 2, &job) == GW_OK ? 0 : 1);
    });
    const auto outcome = first.outcome();
    return outcome.value_or(Outcome{-1, "no outcome: " + daemon.log(), 0});
  });
  const auto outcome = both.outcome(seconds(40));
  ASSERT_TRUE(outcome);
  if (outcome->status == kNoNamespaces) {
    GTEST_SKIP() << "this machine lets no test make pid namespaces";
  }
  EXPECT_EQ(outcome->status, GW_ERR_ABORTED) << outcome->message;
  EXPECT_THAT(outcome->message, HasSubstr("rank 1 on node a "));
  EXPECT_THAT(outcome->message, ::testing::Not(HasSubstr("pid 0")));
}

}  // namespace
}  // namespace gradwire::control::testing
