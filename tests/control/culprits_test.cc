// Who is named when something stalls, dies or is refused.
#include <unistd.h>

#include <gmock/gmock.h>

#include "daemon/control/process_age.h"
#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Stalls, TheMissingRankIsNamedToAllAndEndsTheJobAtTheDeadline) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  engine::Stall stall;
  stall.bucket = 1;
  stall.bucket_name = "b0";
  stall.sequence = 5;
  stall.waited_ns = 5'000'000'000;
  cluster.nodes[1]->engine->missing = {3};
  ranks[0]->member->engine_stalled(stall);
  cluster.scheduler.settle();
  EXPECT_TRUE(ranks[0]->running());
  for (const uint32_t rank : {0, 2}) {
    EXPECT_EQ(ranks[rank]->member->facts().stall,
              "bucket 'b0' #5 has waited 5s for rank 3 (node b) to submit it (gathering)");
  }
  stall.deadline = true;
  ranks[0]->member->engine_stalled(stall);
  cluster.scheduler.settle();
  EXPECT_EQ(ranks[0]->failure().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(ranks[2]->failure().message(),
            "operation_timeout (10s): bucket 'b0' #5 waits for rank 3 (node b) to submit it (gathering)");
}

TEST(Stalls, ADaemonWhoseEngineDoesNotAnswerIsNamed) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  engine::Stall stall;
  stall.bucket_name = "b0";
  stall.sequence = 5;
  stall.deadline = true;
  cluster.nodes[1]->engine->answers_stalls = false;
  ranks[0]->member->engine_stalled(stall);
  cluster.scheduler.advance(seconds(2));
  EXPECT_THAT(ranks[0]->failure().message(), HasSubstr("node b (ranks 2,3) whose daemon does not answer"));
}

TEST(Stalls, WhereEveryRankHasSubmittedTheNodesPhasesAreNamed) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  engine::OperationView& view = cluster.nodes[0]->engine->view;
  view.phase = layout::BucketPhase::kReducing;
  view.hop = 0;
  view.hops = 2;
  view.waits_for_node = 1;
  engine::Stall stall;
  stall.bucket = 1;
  stall.bucket_name = "b0";
  stall.sequence = 5;
  stall.waited_ns = 5'000'000'000;
  stall.view = view;
  ranks[0]->member->engine_stalled(stall);
  cluster.scheduler.settle();
  const std::string told = ranks[2]->member->facts().stall;
  EXPECT_THAT(told, AllOf(HasSubstr("bucket 'b0' #5 has waited 5s although every rank has submitted it: "),
                          HasSubstr("node a (ranks 0,1) is reducing, hop 1 of 2, waiting for node b"),
                          HasSubstr("node b (ranks 2,3) is idle")));
  EXPECT_EQ(ranks[0]->member->facts().stall, told);
}

TEST(Stalls, AreOverOnEveryNodeWhenTheOperationMovesOn) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  engine::Stall stall;
  stall.bucket = 1;
  for (const uint64_t sequence : {5, 6}) {
    stall.sequence = sequence;
    ranks[0]->member->engine_stalled(stall);
    cluster.scheduler.settle();
  }
  ranks[0]->member->engine_moved_on(1, 4);
  ranks[0]->member->engine_moved_on(1, 5);
  cluster.scheduler.settle();
  for (const uint32_t rank : {0, 2}) {
    EXPECT_THAT(ranks[rank]->member->facts().stall, HasSubstr("#6"));
  }
  ranks[2]->member->engine_moved_on(1, 6);
  cluster.scheduler.settle();
  for (const uint32_t rank : {0, 2}) {
    EXPECT_EQ(ranks[rank]->member->facts().stall, "");
  }
}

TEST(Facts, HaveTheNodesPlacesAndTheEndsTime) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  const auto member = ranks[2]->member;
  EXPECT_EQ(member->facts().node_index, 1u);
  EXPECT_EQ(member->facts().peers.at(0).node_index, 0u);
  EXPECT_EQ(member->facts().ended_ns, 0u);
  member->trainer_gone(3, "died (pid 1003)");
  cluster.scheduler.settle();
  EXPECT_EQ(member->facts().ended_ns, static_cast<uint64_t>(cluster.scheduler.now().count()));
  EXPECT_EQ(member->facts().cause, "rank 3 on node b died (pid 1003)");
}

// A trainer whose death its session has not told yet.
struct Mortal {
  std::shared_ptr<std::string> why = std::make_shared<std::string>();
  JoinOptions options(uint64_t session) const {
    JoinOptions join;
    join.session = session;
    join.gone = [why = why] { return *why; };
    return join;
  }
};

TEST(Relaunch, TakesTheRankOfADeadTrainerThatWaitedOnItsNode) {
  TestCluster cluster({"a", "b"});
  Mortal first;
  const auto old = cluster.join(1, 1, 3, first.options(1));
  EXPECT_EQ(cluster.join(1, 1, 2, JoinOptions{.session = 2})->failure().code(), Code::kAlreadyExists);
  *first.why = "died (pid 1001)";
  // With another world, too: the dead one disagrees no more.
  const auto one = cluster.join(1, 1, 2, JoinOptions{.session = 3});
  EXPECT_FALSE(one->joined);
  old->member->trainer_gone(1, "died (pid 1001)", 1);  // the session's word comes late
  cluster.scheduler.settle();
  const auto zero = cluster.join(0, 0, 2);
  EXPECT_TRUE(zero->running() && one->running());
}

TEST(Relaunch, OfARunningJobEndsItWithTheSentenceOnTheDeadTrainer) {
  TestCluster cluster({"a", "b"});
  Mortal first;
  const auto zero = cluster.join(0, 0, 2);
  const auto one = cluster.join(1, 1, 2, first.options(1));
  ASSERT_TRUE(one->running());
  const auto twin = cluster.join(1, 1, 2, JoinOptions{.session = 2});
  EXPECT_THAT(twin->failure().message(), HasSubstr("is already in the running epoch there (pid 1001)"));
  *first.why = "died (pid 1001)";
  const auto again = cluster.join(1, 1, 2, JoinOptions{.session = 3});
  EXPECT_EQ(zero->failure().message(), "rank 1 on node b died (pid 1001)");
  EXPECT_FALSE(again->joined);
  cluster.join(0, 0, 2);
  EXPECT_TRUE(again->running());
}

TEST(Relaunch, OnANodeThatEndedTheEpochByItselfEndsItForTheOthers) {
  TestCluster cluster({"a", "b"});
  const auto zero = cluster.join(0, 0, 2);
  const auto one = cluster.join(1, 1, 2);
  // The word of the end on its way is lost: only the rejoin tells.
  *cluster.nodes[1]->cut = true;
  cluster.nodes[1]->members->stop(Status(Code::kAborted, "lost the coordinator"));
  cluster.scheduler.settle();
  EXPECT_TRUE(zero->running() && !one->running());
  *cluster.nodes[1]->cut = false;
  const auto again = cluster.join(1, 1, 2);
  EXPECT_EQ(zero->failure().message(), "rank 1 on node b has started again (pid 1001)");
  cluster.join(0, 0, 2);
  EXPECT_TRUE(again->running());
}

TEST(Relaunch, TheAgeOfAProcessIsKnown) {
  EXPECT_GT(process_age_ms(getpid()), 0u);
  EXPECT_LT(process_age_ms(getpid()), 600'000u);
  EXPECT_GE(process_age_ms(1), process_age_ms(getpid()));
  EXPECT_EQ(process_age_ms(0), 0u);
  EXPECT_EQ(process_age_ms(INT32_MAX), 0u);
}

TEST(Refusals, AreToldToThoseWhoWaitInVain) {
  TestCluster cluster({"a", "b"});
  cluster.coordinator->connection_refused("10.0.0.8", "10.0.0.8 had no key long ago");
  cluster.scheduler.advance(seconds(1));
  const auto zero = cluster.join(0, 0, 2, "job", 3000);
  for (int i = 0; i < 3; ++i) {
    cluster.coordinator->connection_refused("10.0.0.9", "10.0.0.9 does not have the same key");
  }
  cluster.scheduler.advance(seconds(4));
  EXPECT_THAT(zero->failure().message(),
              HasSubstr("rank 1 of 2 did not join in time; there are node a (rank 0); refused meanwhile: "
                        "10.0.0.9 does not have the same key"));
  EXPECT_EQ(zero->failure().message().find("10.0.0.8"), std::string::npos);
}

TEST(Policy, AReloadIsForBucketsThatAreCreatedLater) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  const Manifest exact{"b0", 0, kBucketGradient, {{"w", 5000}}};
  cluster.create_on_all(ranks, exact);
  EXPECT_EQ((**ranks[0]->bucket).codec, "none");
  config::CompressionPolicy l8;
  l8.defaults.codec = "l8";
  cluster.coordinator->set_policy(config::policy_to_json(l8));
  cluster.create_on_all(ranks, {"b1", 0, kBucketGradient, {{"w", 5000}}});
  EXPECT_EQ((**ranks[2]->bucket).codec, "l8");
  EXPECT_EQ(cluster.nodes[0]->engine->buckets.at(1)->reducer->codec_name(), "none");
}

}  // namespace
}  // namespace gradwire::control::testing
