// A job's life through real members and a real coordinator, on virtual time.
#include <gmock/gmock.h>

#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(JobFormation, RanksWaitUntilAllAreThereAndThenStartTogether) {
  TestCluster cluster({"a", "b"});
  const auto two = cluster.join(1, 2, 3);
  const auto zero = cluster.join(0, 0, 3);
  EXPECT_FALSE(two->joined || zero->joined);
  const auto one = cluster.join(0, 1, 3);
  ASSERT_TRUE(zero->running() && one->running() && two->running());
  EXPECT_EQ((*zero->joined)->local_ranks, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ((*two->joined)->nodes, 2u);
  const engine::JobSpec& spec = cluster.nodes[1]->engine->jobs.begin()->second;
  EXPECT_EQ(spec.node_index, 1u);
  EXPECT_EQ(spec.rank_node, (std::vector<uint32_t>{0, 0, 1}));
  ASSERT_EQ(spec.members.size(), 2u);
  EXPECT_EQ(spec.members[0].name, "a");
  EXPECT_EQ(spec.members[0].address, "address of a");
  EXPECT_EQ(spec.members[1].address, "address of b");
  EXPECT_EQ(spec.members[0].hosts, (std::vector<std::string>{"10.0.0.1", "fe80::1"}));
  EXPECT_EQ(spec.key[0], std::byte{'k'});
  EXPECT_EQ(spec.local_ranks.size(), 1u);
}

TEST(JobFormation, TheRingIsOrderedByTheLowestRankOfEachNode) {
  TestCluster cluster({"a", "b", "c"});
  cluster.join(0, 2, 3);
  cluster.join(1, 1, 3);
  cluster.join(2, 0, 3);
  const std::vector<engine::JobNode>& members = cluster.nodes[2]->engine->jobs.begin()->second.members;
  ASSERT_EQ(members.size(), 3u);
  EXPECT_EQ(members[0].name, "c");
  EXPECT_EQ(members[1].name, "b");
  EXPECT_EQ(members[1].address, "address of b");
  EXPECT_EQ(members[2].name, "a");
}

TEST(JobFormation, AWorldThatDiffersIsToldToAllThatWaitAndToThoseWhoComeAMomentLater) {
  TestCluster cluster({"a", "b"});
  const auto zero = cluster.join(0, 0, 4);
  const auto one = cluster.join(1, 1, 5);
  for (const auto& rank : {zero, one}) {
    ASSERT_TRUE(rank->joined && !rank->joined->ok());
    EXPECT_EQ(rank->failure().code(), Code::kMismatch);
    EXPECT_THAT(rank->failure().message(),
                AllOf(HasSubstr("4 on rank 0 (node a)"), HasSubstr("5 on rank 1 (node b)")));
  }
  // A process of that launch which was slower than the others, on either node.
  cluster.scheduler.advance(milliseconds(300));
  for (const size_t node : {0, 1}) {
    const auto late = cluster.join(node, static_cast<uint32_t>(2 + node), 4, JoinOptions{.age_ms = 900});
    EXPECT_EQ(late->failure().code(), Code::kMismatch);
  }
  // Those who know may try again at once.
  const auto again = cluster.join(0, 0, 1);
  EXPECT_TRUE(again->running());
}

TEST(JobFormation, ALaunchAfterOneThatDisagreedFormsAtOnceOnAllNodes) {
  TestCluster cluster({"a", "b"});
  cluster.join(0, 0, 4);
  EXPECT_EQ(cluster.join(1, 1, 5)->failure().code(), Code::kMismatch);
  cluster.scheduler.advance(milliseconds(800));
  std::vector<std::shared_ptr<TestRank>> ranks;
  for (const uint32_t rank : {3, 2, 1, 0}) {  // the first ones were not in the launch that failed
    ranks.push_back(cluster.join(rank / 2, rank, 4, JoinOptions{.age_ms = 500}));
  }
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->running()) << rank->failure().message();
  }
}

TEST(JobFormation, AnOldProcessThatHasHeardOfTheDisagreementMayTryAgain) {
  TestCluster cluster({"a", "b"});
  cluster.join(0, 0, 3);
  cluster.join(1, 1, 4);
  const JoinOptions old{.age_ms = 60'000};
  cluster.scheduler.advance(milliseconds(1));
  EXPECT_EQ(cluster.join(0, 2, 3, old)->failure().code(), Code::kMismatch);
  const auto two = cluster.join(0, 2, 3, old);
  cluster.join(0, 0, 3, old);
  cluster.join(1, 1, 3, old);
  EXPECT_TRUE(two->running());
}

TEST(JobFormation, ARankThatIsThereTwiceIsRefusedAndTheFirstGoesOn) {
  TestCluster cluster({"a", "b"});
  const auto first = cluster.join(0, 0, 2);
  const auto second = cluster.join(1, 0, 2);
  EXPECT_EQ(second->failure().code(), Code::kAlreadyExists);
  EXPECT_THAT(second->failure().message(),
              AllOf(HasSubstr("on node b (pid 1000)"), HasSubstr("on node a (pid 1000)")));
  const auto local_twin = cluster.join(0, 0, 2);
  EXPECT_EQ(local_twin->failure().code(), Code::kAlreadyExists);
  EXPECT_FALSE(first->joined);
  const auto other = cluster.join(1, 1, 2);
  EXPECT_TRUE(first->running() && other->running());
  const auto late = cluster.join(1, 1, 2);
  EXPECT_EQ(late->failure().code(), Code::kAlreadyExists);
  EXPECT_TRUE(first->running() && other->running());
}

TEST(JobFormation, ARankThatNeverJoinsIsNamedWhenTheTimeIsOver) {
  TestCluster cluster({"a", "b"});
  const auto zero = cluster.join(0, 0, 4, "job", 3000);
  const auto three = cluster.join(1, 3, 4);
  cluster.scheduler.advance(milliseconds(2900));
  EXPECT_FALSE(zero->joined || three->joined);
  cluster.scheduler.advance(milliseconds(200));
  for (const auto& rank : {zero, three}) {
    ASSERT_TRUE(rank->joined);
    EXPECT_EQ(rank->failure().code(), Code::kDeadlineExceeded);
    EXPECT_THAT(rank->failure().message(), AllOf(HasSubstr("ranks 1,2 of 4"), HasSubstr("node a (rank 0)"),
                                                 HasSubstr("node b (rank 3)")));
  }
  EXPECT_EQ(cluster.coordinator->jobs(), 0u);
}

TEST(JobFormation, ATrainerThatDiesWhileWaitingOnlyGivesItsPlaceFree) {
  TestCluster cluster({"a", "b"});
  const auto zero = cluster.join(0, 0, 2);
  const auto one = cluster.join(1, 1, 2);
  EXPECT_TRUE(zero->running());
  const auto waiting = cluster.join(0, 0, 2, "other");
  const auto dying = cluster.join(1, 0, 3, "third");
  dying->member->trainer_gone(0, "died (pid 1)");
  cluster.scheduler.settle();
  const auto retry = cluster.join(1, 0, 1, "third");
  EXPECT_TRUE(retry->running());
  waiting->member->trainer_gone(0, "died (pid 1)");
  const auto zero_again = cluster.join(0, 0, 2, "other");
  const auto one_other = cluster.join(1, 1, 2, "other");
  EXPECT_TRUE(zero_again->running() && one_other->running());
}

TEST(JobFormation, ACoordinatorThatIsNotThereIsTriedAgainAndThenNamed) {
  TestCluster cluster({"a", "b"});
  auto coordinator = std::move(cluster.coordinator);
  const auto zero = cluster.join(1, 0, 1, "job", 3000);
  cluster.scheduler.advance(seconds(1));
  EXPECT_FALSE(zero->joined);
  cluster.coordinator = std::move(coordinator);
  cluster.scheduler.advance(seconds(1));
  EXPECT_TRUE(zero->running());
  cluster.coordinator.reset();
  const auto one = cluster.join(1, 0, 1, "other", 3000);
  cluster.scheduler.advance(seconds(4));
  EXPECT_THAT(one->failure().message(), AllOf(HasSubstr("a:7470"), HasSubstr("connection refused")));
}

TEST(JobFormation, ARendezvousThatMakesNoSenseIsRefusedAtOnce) {
  TestCluster cluster({"a"});
  cluster.refusal = Status(Code::kInvalidArgument, "the rendezvous 'a:99999' has no port");
  const auto zero = cluster.join(0, 0, 1);
  EXPECT_EQ(zero->failure().message(), "the rendezvous 'a:99999' has no port");
  cluster.refusal = ok_status();
  EXPECT_TRUE(cluster.join(0, 0, 1)->running());
}

TEST(JobFormation, OtherVersionsAndOtherSegmentSizesAreRefusedWithBothNames) {
  TestCluster cluster({"a", "b", "c"});
  cluster.nodes[1]->context->self.version = "0.2.0";
  const auto other = cluster.join(1, 0, 1);
  EXPECT_EQ(other->failure().code(), Code::kUnsupported);
  EXPECT_THAT(other->failure().message(), AllOf(HasSubstr("gradwire 0.2.0"), HasSubstr("0.1.0")));
  cluster.nodes[2]->context->self.max_payload = 65536;
  const auto zero = cluster.join(0, 0, 2);
  const auto one = cluster.join(2, 1, 2);
  EXPECT_EQ(zero->failure().code(), Code::kMismatch);
  EXPECT_THAT(one->failure().message(), AllOf(HasSubstr("transport.segment"), HasSubstr("65536 on node c")));
}

TEST(JobFormation, AnEngineThatCannotStartEndsItForAll) {
  TestCluster cluster({"a", "b"});
  cluster.nodes[1]->engine->add_job_result = Status(Code::kUnavailable, "no route to node a");
  const auto zero = cluster.join(0, 0, 2);
  const auto one = cluster.join(1, 1, 2);
  cluster.scheduler.advance(milliseconds(300));
  EXPECT_THAT(zero->failure().message(), HasSubstr("node b: no route to node a"));
  EXPECT_EQ(zero->failure().message(), one->failure().message());
}

TEST(JobEnd, ADeadTrainerIsToldToAllInTheSameWords) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  ranks[3]->member->trainer_gone(3, "died (pid 1003)");
  cluster.scheduler.settle();
  for (const uint32_t rank : {0, 1, 2}) {
    ASSERT_TRUE(ranks[rank]->aborted) << rank;
    EXPECT_EQ(ranks[rank]->aborted->message(), "rank 3 on node b died (pid 1003)");
  }
  EXPECT_EQ(cluster.nodes[0]->engine->abort_cause.message(), "rank 3 on node b died (pid 1003)");
  EXPECT_TRUE(cluster.nodes[0]->engine->jobs.empty());
  EXPECT_EQ(cluster.coordinator->jobs(), 0u);
  EXPECT_EQ(cluster.coordinator->members(), 0u);
  cluster.running_job();  // the same identity again, at once
}

TEST(JobEnd, ALostDaemonIsNamedWithItsRanks) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (const uint32_t rank : {2, 3}) {
    ranks[rank]->member.reset();
  }
  cluster.nodes[1]->members.reset();
  cluster.scheduler.settle();
  EXPECT_EQ(ranks[0]->failure().message(), "node b (ranks 2,3) is gone: connection closed");
}

TEST(JobEnd, ASilentNodeIsNoticedOnBothSidesWithinThePeerTimeout) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.scheduler.advance(seconds(20));  // heartbeats keep it alive
  ASSERT_TRUE(ranks[0]->running());
  *cluster.nodes[1]->cut = true;
  cluster.scheduler.advance(milliseconds(2100));
  EXPECT_TRUE(ranks[0]->running() && ranks[3]->running()) << "TCP had no time to try again after a break";
  cluster.scheduler.advance(milliseconds(500));
  EXPECT_THAT(ranks[0]->failure().message(),
              AllOf(HasSubstr("node b (ranks 2,3)"), HasSubstr("no heartbeat")));
  EXPECT_THAT(ranks[3]->failure().message(),
              AllOf(HasSubstr("node a (ranks 0,1), which coordinates the job"), HasSubstr("no heartbeat")));
}

TEST(JobEnd, ABreakThatEndsWithinThePeerTimeoutIsSurvived) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (int phase = 0; phase < 10; ++phase) {
    cluster.scheduler.advance(milliseconds(3000 + 37 * phase));
    *cluster.nodes[1]->cut = true;
    cluster.scheduler.advance(milliseconds(1800));
    *cluster.nodes[1]->cut = false;
  }
  cluster.scheduler.advance(seconds(5));
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->running()) << rank->failure().message();
  }
}

TEST(JobEnd, ADeadCoordinatorEndsItEverywhere) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.coordinator.reset();
  cluster.scheduler.settle();
  for (const auto& rank : ranks) {
    EXPECT_THAT(rank->failure().message(),
                HasSubstr("node a (ranks 0,1), which coordinates the job, is gone"));
  }
}

TEST(JobEnd, ACauseOfTheDataPathWaitsAMomentForABetterOne) {
  TestCluster cluster({"a", "b", "c"});
  std::vector<std::shared_ptr<TestRank>> ranks;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(cluster.join(rank, rank, 3));
  }
  ranks[1]->member->engine_failed(Status(Code::kUnavailable, "endpoint timeout"));
  cluster.scheduler.settle();
  EXPECT_TRUE(ranks[0]->running());
  ranks[2]->member.reset();
  cluster.nodes[2]->members.reset();
  cluster.scheduler.settle();
  EXPECT_THAT(ranks[0]->failure().message(), HasSubstr("node c (rank 2) is gone"));
  EXPECT_EQ(ranks[1]->failure().message(), ranks[0]->failure().message());
}

TEST(JobEnd, ACauseOfTheDataPathIsToldIfThereIsNoBetterOne) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  ranks[2]->member->engine_failed(Status(Code::kMismatch, "sequence 5 and 6"));
  cluster.scheduler.advance(milliseconds(200));
  EXPECT_EQ(ranks[0]->failure().message(), "node b: sequence 5 and 6");
  EXPECT_EQ(ranks[0]->failure().code(), Code::kMismatch);
  EXPECT_EQ(ranks[2]->failure().message(), ranks[0]->failure().message());
}

TEST(JobEnd, AReportThatNobodyAnswersEndsItHereWithItsOwnCause) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  *cluster.nodes[1]->cut = true;
  ranks[2]->member->engine_failed(Status(Code::kUnavailable, "endpoint timeout"));
  cluster.scheduler.advance(milliseconds(2600));
  EXPECT_FALSE(ranks[2]->failure().ok());
}

TEST(JobEnd, AStoppingDaemonSaysSo) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.nodes[1]->members->stop(Status(Code::kAborted, "the daemon on node b is stopping"));
  cluster.scheduler.settle();
  EXPECT_THAT(ranks[0]->failure().message(), HasSubstr("the daemon on node b is stopping"));
  EXPECT_THAT(ranks[2]->failure().message(), HasSubstr("the daemon on node b is stopping"));
}

TEST(JobEnd, WhenAllHaveLeftTheJobEndsWithoutAnError) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (const uint32_t rank : {3, 2, 0}) {
    cluster.leave(ranks[rank]);
    EXPECT_TRUE(ranks[rank]->answer && ranks[rank]->answer->ok());
  }
  EXPECT_TRUE(cluster.nodes[0]->engine->logged("note_rank_left 3 4"));
  EXPECT_EQ(cluster.nodes[1]->engine->jobs.size(), 1u);        // it relays until the end
  ranks[3]->member->trainer_gone(3, "closed its connection");  // after the leave: nothing
  // A rank that has left may wait for the next epoch already.
  const auto next = cluster.join(1, 3, 4);
  EXPECT_FALSE(next->joined);
  cluster.leave(ranks[1]);
  EXPECT_TRUE(cluster.nodes[1]->engine->jobs.empty());
  EXPECT_FALSE(cluster.nodes[1]->engine->logged("abort_job"));
  for (const auto& rank : ranks) {
    EXPECT_FALSE(rank->aborted);
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    cluster.join(rank / 2, rank, 4);
  }
  EXPECT_TRUE(next->running());
}

}  // namespace
}  // namespace gradwire::control::testing
