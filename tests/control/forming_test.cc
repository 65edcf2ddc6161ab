// What comes between a rank's join and the epoch's start: deaths at every moment, ranks in the wrong place.
#include <gmock/gmock.h>

#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kMostMoments = 500;

// Ranks 0 (node a, which coordinates), 1 and 2 (node b) of a world of three. Rank 1 or 2 comes last and then
// `victim` goes in the way of `end`, `moment` steps later; what is true of the survivors then is returned.
struct Attempt {
  using End = std::function<void(TestCluster&, const std::shared_ptr<TestRank>&)>;

  Attempt(uint32_t victim, int moment, const End& end) : cluster({"a", "b"}) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const bool last = rank == 2;
      ranks.push_back(cluster.join(
          node_of(rank), rank, 3,
          JoinOptions{.gone = [this, rank] { return dead == rank ? "died (pid 5)" : ""; }, .settle = !last}));
    }
    int steps = 0;
    while (steps < moment && cluster.scheduler.step()) {
      ++steps;
    }
    over = steps < moment;
    dead = victim;
    end(cluster, ranks[victim]);
    cluster.scheduler.settle();
  }

  static size_t node_of(uint32_t rank) { return rank == 0 ? 0 : 1; }

  // Whether the survivors had joined already; else they must be waiting.
  bool had_started(uint32_t victim) const {
    bool started = false;
    for (const auto& rank : ranks) {
      if (rank->rank != victim && rank->joined) {
        EXPECT_TRUE(rank->joined->ok()) << "rank " << rank->rank << ": " << rank->failure().message();
        EXPECT_TRUE(rank->aborted) << "rank " << rank->rank << " plays on with a dead one";
        started = true;
      }
    }
    return started;
  }

  std::optional<uint32_t> dead;
  TestCluster cluster;
  std::vector<std::shared_ptr<TestRank>> ranks;
  bool over = false;  // all steps were taken before
};

void expect_survivors_go_on(uint32_t victim, const Attempt::End& end) {
  int waited = 0;
  for (int moment = 0;; ++moment) {
    SCOPED_TRACE("rank " + std::to_string(victim) + " dies after " + std::to_string(moment) + " steps");
    ASSERT_LT(moment, kMostMoments);
    Attempt attempt(victim, moment, end);
    if (const bool started = attempt.had_started(victim); !started) {
      ++waited;
      attempt.dead.reset();
      attempt.ranks[victim] = attempt.cluster.join(Attempt::node_of(victim), victim, 3);
      for (const auto& rank : attempt.ranks) {
        EXPECT_TRUE(rank->running()) << "rank " << rank->rank << ": " << rank->failure().message();
        if (rank->running()) {
          EXPECT_EQ((*rank->joined)->epoch, 1u) << "what did not start does not count";
        }
      }
      for (const auto& node : attempt.cluster.nodes) {
        EXPECT_EQ(node->engine->jobs.size(), 1u) << "in the engine of node " << node->name;
        EXPECT_EQ(node->members->size(), 1u);
      }
      EXPECT_EQ(attempt.cluster.coordinator->jobs(), 1u);
      EXPECT_EQ(attempt.cluster.coordinator->members(), 2u);
    }
    if (attempt.over || ::testing::Test::HasFailure()) {
      break;
    }
  }
  EXPECT_GE(waited, 4) << "moments before the start";
}

TEST(Forming, ARankThatDiesBeforeTheStartIsAsIfItHadNeverJoined) {
  for (const uint32_t victim : {0, 1, 2}) {
    expect_survivors_go_on(victim, [](TestCluster&, const std::shared_ptr<TestRank>& rank) {
      rank->member->trainer_gone(rank->rank, "died (pid 5)");
    });
  }
}

TEST(Forming, ARankThatIsDeadAndNotYetToldOfIsNotStartedWith) {
  for (const uint32_t victim : {0, 1, 2}) {
    TestCluster cluster({"a", "b"});
    bool dead = false;
    std::vector<std::shared_ptr<TestRank>> ranks(3);
    for (const uint32_t rank : {victim, (victim + 1) % 3, (victim + 2) % 3}) {
      JoinOptions options;
      if (rank == victim) {
        options.gone = [&dead] { return dead ? "died (pid 5)" : ""; };
      }
      ranks[rank] = cluster.join(Attempt::node_of(rank), rank, 3, options);
      dead = true;
    }
    for (const auto& rank : ranks) {
      EXPECT_FALSE(rank->joined) << rank->rank << " of " << victim << ": " << rank->failure().message();
    }
    dead = false;
    ranks[victim] = cluster.join(Attempt::node_of(victim), victim, 3);
    for (const auto& rank : ranks) {
      EXPECT_TRUE(rank->running()) << rank->failure().message();
    }
  }
}

TEST(Forming, ANodeThatIsLostBeforeTheStartIsAsIfItHadNeverBeenThere) {
  for (int moment = 0; moment < kMostMoments; ++moment) {
    SCOPED_TRACE(moment);
    TestCluster cluster({"a", "b", "c"});
    const auto zero = cluster.join(0, 0, 2);
    auto one = cluster.join(1, 1, 2, JoinOptions{.settle = false});
    int steps = 0;
    while (steps < moment && cluster.scheduler.step()) {
      ++steps;
    }
    one.reset();
    cluster.nodes[1]->members.reset();
    cluster.scheduler.settle();
    if (zero->joined) {
      EXPECT_TRUE(zero->joined->ok()) << zero->failure().message();
      EXPECT_GT(moment, 5);
      return;
    }
    one = cluster.join(2, 1, 2);
    ASSERT_TRUE(zero->running() && one->running()) << zero->failure().message();
  }
  FAIL() << "it never started";
}

TEST(Forming, WhoWaitsAgainHasTheTimeThatWasLeftAndKeepsItsAge) {
  TestCluster cluster({"a", "b"});
  bool dead = false;
  const auto zero = cluster.join(0, 0, 2, JoinOptions{.timeout_ms = 3000, .fresh = true, .age_ms = 100});
  cluster.scheduler.advance(milliseconds(2000));
  const auto one =
      cluster.join(1, 1, 2, JoinOptions{.gone = [&dead] { return dead ? "died" : ""; }, .settle = false});
  dead = true;
  cluster.scheduler.settle();
  EXPECT_FALSE(zero->joined);
  cluster.scheduler.advance(milliseconds(900));
  EXPECT_FALSE(zero->joined) << zero->failure().message();
  cluster.scheduler.advance(milliseconds(200));
  EXPECT_EQ(zero->failure().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(zero->failure().message(), HasSubstr("rank 1 of 2 did not join in time"));
}

TEST(Forming, ARankInTheWrongPlaceIsRefusedAndTheOthersStart) {
  for (const bool dies : {false, true}) {
    for (int moment = 0; moment < 30; ++moment) {
      SCOPED_TRACE(moment);
      TestCluster cluster({"a", "b"});
      const auto zero = cluster.join(0, 0, 2);
      const auto one = cluster.join(1, 1, 2, JoinOptions{.settle = false});
      const auto twin = cluster.join(1, 0, 2, JoinOptions{.settle = false});
      for (int steps = 0; dies && steps < moment; ++steps) {
        cluster.scheduler.step();
      }
      if (dies && twin->member) {
        twin->member->trainer_gone(0, "died (pid 5)");
      }
      cluster.scheduler.settle();
      EXPECT_TRUE(zero->running()) << zero->failure().message();
      EXPECT_TRUE(one->running()) << one->failure().message();
      if (!dies) {
        EXPECT_EQ(twin->failure().code(), Code::kAlreadyExists) << twin->failure().message();
        break;
      }
    }
  }
}

TEST(Fresh, OfOneRankCountsForAllNodes) {
  for (const uint32_t who : {0, 3}) {
    TestCluster cluster({"a", "b"});
    auto ranks = cluster.running_job();
    ranks[0]->member->trainer_gone(0, "died (pid 5)");
    cluster.scheduler.settle();
    for (const auto& node : cluster.nodes) {
      compress::LayerState state;
      state.name = "w";
      state.elements = 2;
      state.residual.memory = std::make_shared<const std::vector<float>>(2, 1.5F);
      node->context->residuals->keep({7, "job", "0"}, "b0", {state});
      EXPECT_NE(node->context->pasts->find({7, "job", "0"}), nullptr);
    }
    ranks.clear();
    for (uint32_t rank = 0; rank < 4; ++rank) {
      if (rank == 3) {
        for (const auto& node : cluster.nodes) {
          EXPECT_EQ(node->context->residuals->kept_jobs(), 1u) << "a job that has not formed drops nothing";
        }
      }
      ranks.push_back(cluster.join(rank / 2, rank, 4, JoinOptions{.fresh = rank == who}));
    }
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank->running()) << rank->failure().message();
      EXPECT_EQ((*rank->joined)->epoch, 2u);
      EXPECT_EQ((*rank->joined)->past->unknown_nodes, 2u);
      EXPECT_TRUE((*rank->joined)->past->buckets.empty());
    }
    for (const auto& node : cluster.nodes) {
      EXPECT_TRUE(node->context->residuals
                      ->take({7, "job", "0"}, "b0", std::vector<std::pair<std::string, uint64_t>>{{"w", 2}})
                      .empty())
          << node->name;
      EXPECT_EQ(node->context->pasts->find({7, "job", "0"}), nullptr) << node->name;
      EXPECT_EQ(node->context->quotas->held_bytes(7), 0u) << node->name;
    }
  }
}

}  // namespace
}  // namespace gradwire::control::testing
