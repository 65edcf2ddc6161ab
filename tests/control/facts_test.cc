// What `status` is told of jobs.
#include <gtest/gtest.h>

#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

TEST(Facts, OfAnEpochThatHasEndedShowNobodyAsThere) {
  TestCluster cluster({"a", "b", "c"});
  std::vector<std::shared_ptr<TestRank>> ranks;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(cluster.join(rank, rank, 3));
  }
  JobFacts alive = ranks[0]->member->facts();
  EXPECT_EQ(alive.ranks.at(0).state, layout::RankState::kAttached);
  EXPECT_EQ(alive.peers.at(0).state, layout::PeerState::kUp);
  ranks[2]->member.reset();
  cluster.nodes[2]->members.reset();
  cluster.scheduler.settle();
  const JobFacts over = ranks[0]->member->facts();
  EXPECT_EQ(over.state, layout::JobState::kAborted);
  EXPECT_EQ(over.ranks.at(0).state, layout::RankState::kGone);
  EXPECT_EQ(over.peers.at(0).state, layout::PeerState::kGone);
  EXPECT_EQ(over.peers.at(1).state, layout::PeerState::kLost) << over.cause;
}

TEST(Facts, OfAnOrderlyEndShowThatAllHaveLeft) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (const auto& rank : ranks) {
    cluster.leave(rank);
  }
  const JobFacts over = ranks[3]->member->facts();
  EXPECT_EQ(over.state, layout::JobState::kEnded);
  for (const JobFacts::Rank& rank : over.ranks) {
    EXPECT_EQ(rank.state, layout::RankState::kLeft);
  }
  EXPECT_EQ(over.peers.at(0).state, layout::PeerState::kGone);
}

}  // namespace
}  // namespace gradwire::control::testing
