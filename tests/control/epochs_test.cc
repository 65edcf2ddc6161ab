// Jobs that come back after a failure: progress and counters; and jobs that have nothing to do with each
// other.
#include <gmock/gmock.h>

#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Ranks = std::vector<std::shared_ptr<TestRank>>;

TEST(Epochs, AFirstEpochHasNoPast) {
  TestCluster cluster({"a", "b"});
  const Ranks ranks = cluster.running_job();
  EXPECT_EQ((*ranks[0]->joined)->epoch, 1u);
  EXPECT_FALSE((*ranks[0]->joined)->past);
}

TEST(Epochs, AJobThatComesBackLearnsHowFarEveryBucketCame) {
  TestCluster cluster({"a", "b"});
  Ranks ranks = cluster.running_job();
  cluster.create_on_all(ranks, gradient("b0", "w", 10));
  cluster.create_on_all(ranks, gradient("b1", "v", 10));
  cluster.nodes[0]->engine->completed_here = {{1, 16}};
  cluster.nodes[1]->engine->completed_here = {{1, 17}};
  kill(cluster, ranks[3]);
  ranks = cluster.running_job();
  for (const auto& rank : ranks) {
    const Joined& joined = **rank->joined;
    EXPECT_EQ(joined.epoch, 2u);
    ASSERT_TRUE(joined.past);
    EXPECT_EQ(joined.past->epoch, 1u);
    EXPECT_EQ(joined.past->unknown_nodes, 0u);
    ASSERT_EQ(joined.past->buckets.size(), 2u);
    EXPECT_EQ(joined.past->buckets[0].name, "b0");
    EXPECT_EQ(joined.past->buckets[0].lowest, 16u);
    EXPECT_EQ(joined.past->buckets[0].highest, 17u);
    EXPECT_EQ(joined.past->buckets[0].highest_rank, 2);
    EXPECT_EQ(joined.past->buckets[1].highest, 0u);
    EXPECT_EQ(joined.past->buckets[1].highest_rank, -1);
  }
}

TEST(Epochs, ADaemonThatIsNewCountsAsUnknownAndTheCounterGoesOn) {
  TestCluster cluster({"a", "b"});
  Ranks ranks = cluster.running_job();
  cluster.create_on_all(ranks, gradient("b0", "w", 10));
  cluster.nodes[0]->engine->completed_here = {{1, 16}};
  kill(cluster, ranks[3]);
  cluster.nodes[1]->context->pasts = std::make_shared<PastStore>(cluster.scheduler, cluster.ttl);
  ranks = cluster.running_job();
  EXPECT_EQ((*ranks[2]->joined)->past->unknown_nodes, 1u);
  EXPECT_EQ((*ranks[2]->joined)->past->buckets.at(0).lowest, 16u);
}

TEST(Epochs, NoUsersFailuresMakeTheDaemonForgetAnothers) {
  FakeScheduler scheduler;
  PastStore pasts(scheduler, seconds(600));
  Past past;
  past.epoch = 7;
  const JobIdentity victim{1000, "train", "0"};
  pasts.remember(victim, past);
  for (int i = 0; i < 5000; ++i) {
    pasts.remember({1001, "flood" + std::to_string(i), "0"}, past);
  }
  ASSERT_NE(pasts.find(victim), nullptr);
  EXPECT_EQ(pasts.find(victim)->epoch, 7u);
  EXPECT_EQ(pasts.find({1001, "flood0", "0"}), nullptr);
  EXPECT_NE(pasts.find({1001, "flood4999", "0"}), nullptr);
}

TEST(Epochs, ACoordinatorThatIsNewLearnsTheCounterFromTheNodes) {
  TestCluster cluster({"a", "b"});
  Ranks ranks = cluster.running_job();
  cluster.coordinator = std::make_unique<Coordinator>(
      cluster.scheduler, CoordinatorOptions{cluster.nodes[0]->context->self, seconds(2), seconds(10),
                                            config::policy_to_json(cluster.policy),
                                            [](size_t bytes) { return std::string(bytes, 'k'); }});
  cluster.scheduler.settle();
  EXPECT_FALSE(ranks[0]->failure().ok());
  ranks = cluster.running_job();
  EXPECT_EQ((*ranks[0]->joined)->epoch, 2u);
  EXPECT_EQ((*ranks[0]->joined)->past->epoch, 1u);
}

TEST(Epochs, AnAttemptThatNeverRanDoesNotCount) {
  TestCluster cluster({"a", "b"});
  kill(cluster, cluster.running_job()[0]);
  cluster.nodes[1]->engine->add_job_result = Status(Code::kUnavailable, "no route");
  cluster.join(0, 0, 2);
  cluster.join(1, 1, 2);
  cluster.scheduler.advance(milliseconds(300));
  cluster.nodes[1]->engine->add_job_result = ok_status();
  const Ranks ranks = cluster.running_job();
  EXPECT_EQ((*ranks[0]->joined)->epoch, 2u);
  EXPECT_EQ((*ranks[0]->joined)->past->unknown_nodes, 0u);
}

TEST(Epochs, AnOrderlyEndAndAFreshJoinForgetThePast) {
  TestCluster cluster({"a", "b"});
  kill(cluster, cluster.running_job()[0]);
  Ranks ranks = cluster.running_job();
  for (const auto& rank : ranks) {
    cluster.leave(rank);
  }
  ranks = cluster.running_job();
  EXPECT_EQ((*ranks[0]->joined)->epoch, 1u);
  EXPECT_FALSE((*ranks[0]->joined)->past);
  kill(cluster, ranks[0]);
  ranks = cluster.running_job(JoinOptions{.fresh = true});
  EXPECT_EQ((*ranks[0]->joined)->past->unknown_nodes, 2u);
  EXPECT_TRUE((*ranks[0]->joined)->past->buckets.empty());
}

TEST(Epochs, ThePastIsForgottenAfterItsTime) {
  TestCluster cluster({"a", "b"}, seconds(30));
  Ranks ranks = cluster.running_job();
  cluster.create_on_all(ranks, gradient("b0", "w", 10));
  kill(cluster, ranks[0]);
  cluster.scheduler.advance(seconds(31));
  ranks = cluster.running_job();
  EXPECT_EQ((*ranks[0]->joined)->past->unknown_nodes, 2u);
}

TEST(Epochs, ARejoinWaitsForTheEnginesAnswerAboutTheEpochBefore) {
  TestCluster cluster({"a", "b"});
  Ranks ranks = cluster.running_job();
  cluster.create_on_all(ranks, gradient("b0", "w", 10));
  FakeEngine& slow = *cluster.nodes[1]->engine;
  slow.completed_here = {{1, 9}};
  slow.answers_completed = false;
  kill(cluster, ranks[0]);
  ranks.clear();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(cluster.join(rank / 2, rank, 4));
    EXPECT_FALSE(ranks.back()->joined);
  }
  for (const Work& answer : slow.late_answers) {
    answer();
  }
  cluster.scheduler.settle();
  ASSERT_TRUE(ranks[0]->running());
  EXPECT_EQ((*ranks[0]->joined)->past->buckets.at(0).highest, 9u);
}

TEST(Epochs, PastsOfOlderEpochsAndBucketsThatANodeLacksAreWeighedRightly) {
  const Past old{1, 0, {{"b0", 90, 90, -1}}};
  const Past here{2, 0, {{"b0", 5, 5, -1}, {"b1", 3, 3, -1}}};
  const Past there{2, 0, {{"b0", 5, 5, -1}}};
  const Past merged = merge_pasts({{&old, 0}, {&here, 4}, {&there, 2}, {nullptr, 6}}, 0);
  EXPECT_EQ(merged.epoch, 2u);
  EXPECT_EQ(merged.unknown_nodes, 2u);
  ASSERT_EQ(merged.buckets.size(), 2u);
  EXPECT_EQ(merged.buckets[0].lowest, 5u);
  EXPECT_EQ(merged.buckets[0].highest_rank, 2);
  EXPECT_EQ(merged.buckets[1].lowest, 0u);
  EXPECT_EQ(merged.buckets[1].highest_rank, 4);
  EXPECT_EQ(merge_pasts({{&old, 0}}, 3).unknown_nodes, 1u);
}

TEST(Epochs, TooManyNamesAreLeftOutOfAPast) {
  Past past;
  past.epoch = 1;
  for (size_t i = 0; i < 20'000; ++i) {
    const std::string number = std::to_string(i);
    past.buckets.push_back({std::string(249 - number.size(), 'n') + "000000" + number, i, i, -1});
  }
  EXPECT_GT(limit_past(&past), 0u);
  EXPECT_LE(past.buckets.size() * 255, kMaxPastNames);
  EXPECT_GT(past.buckets.size() * 256, kMaxPastNames);
}

TEST(Users, OfOneJobNameAndRendezvousNeverMeet) {
  TestCluster cluster({"a", "b"});
  const auto mine = cluster.join(0, 0, 2, JoinOptions{.uid = 7});
  const auto theirs = cluster.join(1, 1, 2, JoinOptions{.uid = 8});
  const auto other_run = cluster.join(1, 1, 2, JoinOptions{.run_id = "1"});
  EXPECT_FALSE(mine->joined || theirs->joined || other_run->joined);
  const auto mine_too = cluster.join(1, 1, 2, JoinOptions{.uid = 7});
  EXPECT_TRUE(mine->running() && mine_too->running());
  EXPECT_FALSE(theirs->joined || other_run->joined);
}

TEST(Users, AJobsEndLeavesTheOthersAlone) {
  TestCluster cluster({"a", "b"});
  std::vector<Ranks> jobs = {cluster.running_job(), cluster.running_job(JoinOptions{.run_id = "1"}),
                             cluster.running_job(JoinOptions{.uid = 8})};
  for (const Ranks& ranks : jobs) {
    cluster.create_on_all(ranks, gradient("b0", "w", 10));
  }
  kill(cluster, jobs[0][3]);
  EXPECT_FALSE(jobs[0][0]->running());
  for (const size_t job : {1, 2}) {
    for (const auto& rank : jobs[job]) {
      EXPECT_TRUE(rank->running());
    }
    cluster.create_on_all(jobs[job], gradient("b1", "w", 10));
  }
  EXPECT_EQ((*cluster.running_job()[0]->joined)->epoch, 2u);
  EXPECT_EQ(cluster.coordinator->jobs(), 3u);
}

TEST(Users, TheNumberOfJobsIsBoundedAndTheLimitCanBeRaised) {
  TestCluster cluster({"a"});
  cluster.quotas.jobs_per_user = 1;
  cluster.nodes[0]->context->quotas->set_limits(cluster.quotas);
  const auto first = cluster.join(0, 0, 1);
  const JoinOptions second{.run_id = "1"};
  EXPECT_THAT(cluster.join(0, 0, 1, second)->failure().message(),
              AllOf(HasSubstr("user 7 has 1 jobs on this node"), HasSubstr("quotas.jobs_per_user is 1"),
                    HasSubstr("raise it")));
  EXPECT_TRUE(cluster.join(0, 0, 1, JoinOptions{.uid = 8})->running());
  cluster.quotas.jobs_per_user = 2;
  cluster.nodes[0]->context->quotas->set_limits(cluster.quotas);
  EXPECT_TRUE(cluster.join(0, 0, 1, second)->running());
  EXPECT_TRUE(first->running());
}

}  // namespace
}  // namespace gradwire::control::testing
