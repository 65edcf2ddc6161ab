// What becomes of residuals when a bucket's plan changes.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/control/plans_fixture.h"

namespace gradwire::control::testing {
namespace {

constexpr uint64_t kElements = 400'000;

// A running job with a sparse bucket whose residuals are on node 0.
struct Held : Planned {
  Held() : Planned(automatic(), "topk") {
    ranks = running_job();
    create_on_all(ranks, gradient("b0", "w", kElements));
    operate(*engine(0).buckets.at(1)->reducer);
    norm = bucket(0).reducer->stats().residual_norm;
    EXPECT_GT(norm, 0);
  }

  static void operate(compress::BucketReducer& reducer) {
    std::vector<float> values(kElements);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 1000);
    }
    const void* const local = values.data();
    ASSERT_TRUE(reducer.begin({}).ok());
    std::vector<std::byte> out(130'048);
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      for (const compress::Segment& segment : reducer.geometry().segments(chunk)) {
        ASSERT_TRUE(reducer.hop(segment, {}, {&local, 1}, out.data()).ok());
      }
    }
    reducer.commit();
  }

  // Until what node 0's bucket works with is out of its reducer, and not in the next one yet.
  void until_it_is_on_its_way() {
    engine(0).idles = false;
    set_times(kFast);
    ASSERT_TRUE(until_told(0, "let_begin 1 from 1"));
    scheduler.settle();
    for (const Work& rest : std::exchange(engine(0).late_answers, {})) {
      rest();
    }
  }

  // What node 0 keeps of gone buckets, over all their layers.
  double kept_norm() const {
    double squares = 0;
    for (const compress::StateSection& section : nodes[0]->context->residuals->copy({7, "job", "0"})) {
      EXPECT_EQ(section.bucket, "b0");
      for (const compress::LayerState& layer : section.layers) {
        for (uint64_t i = 0; i < layer.elements; ++i) {
          const double value = layer.residual.memory->at(layer.residual.first + i);
          squares += value * value;
        }
      }
    }
    return std::sqrt(squares);
  }

  std::vector<std::shared_ptr<TestRank>> ranks;
  double norm = 0;
};

TEST(PlanState, WaitsInAnExactBucketForItsNextOperation) {
  Held cluster;
  cluster.set_times(kFast);
  cluster.wait_for_rounds(14);
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
  EXPECT_NEAR(cluster.bucket(0).reducer->stats().residual_norm, cluster.norm, 1e-6 * cluster.norm);
  // And back again, without an operation.
  cluster.set_times(kGigabit);
  cluster.wait_for_rounds(14);
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  EXPECT_NEAR(cluster.bucket(0).reducer->stats().residual_norm, cluster.norm, 1e-6 * cluster.norm);
}

TEST(PlanState, IsChargedAndKeptThroughPlansThatAreAllExact) {
  Held cluster;
  config::PlanOptions plan = automatic();
  plan.bypass = "always";
  for (const uint64_t segment : {80'000, 90'000}) {
    plan.segment = segment;
    cluster.coordinator->set_plan(plan);
    cluster.scheduler.settle();
    ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
    EXPECT_NEAR(cluster.bucket(0).reducer->stats().residual_norm, cluster.norm, 1e-6 * cluster.norm);
    // Two gradients, the result, and what it owes.
    EXPECT_GE(cluster.nodes[0]->context->quotas->held_bytes(7), kElements * 4 * sizeof(float)) << segment;
  }
  for (const auto& rank : cluster.ranks) {
    cluster.destroy(rank, 1);
  }
  EXPECT_NEAR(cluster.kept_norm(), cluster.norm, 1e-6 * cluster.norm);
}

TEST(PlanState, GoesToABucketThatIsExactFromTheBeginning) {
  Held cluster;
  for (const auto& rank : cluster.ranks) {
    cluster.destroy(rank, 1);
  }
  EXPECT_NEAR(cluster.kept_norm(), cluster.norm, 1e-6 * cluster.norm);
  cluster.set_times(kFast);
  cluster.wait_for_rounds(14);
  cluster.create_on_all(cluster.ranks, gradient("b1", "w", kElements));
  ASSERT_EQ(cluster.bucket(0, 2).reducer->codec_name(), "none");
  EXPECT_NEAR(cluster.bucket(0, 2).reducer->stats().residual_norm, cluster.norm, 1e-6 * cluster.norm);
  EXPECT_GE(cluster.nodes[0]->context->quotas->held_bytes(7), kElements * (2 + 1 + 1) * sizeof(float))
      << "two gradients, a result, and what is owed";
}

TEST(PlanState, IsKeptWhereTheBucketGoesOnItsWay) {
  for (const bool restoring : {false, true}) {
    for (const bool dies : {false, true}) {
      Held cluster;
      cluster.until_it_is_on_its_way();
      if (restoring) {
        cluster.nodes[0]->workshop->closed = true;
        cluster.scheduler.settle();
      }
      if (dies) {
        kill(cluster, cluster.ranks[0]);
      } else {
        for (const auto& rank : cluster.ranks) {
          cluster.destroy(rank, 1);
        }
      }
      cluster.nodes[0]->workshop->open();
      cluster.scheduler.advance(seconds(30));
      EXPECT_EQ(cluster.engine(0).buckets.size(), 0u);
      EXPECT_NEAR(cluster.kept_norm(), cluster.norm, 1e-6 * cluster.norm)
          << (restoring ? "restoring" : "taken") << (dies ? ", a death" : ", destroyed");
    }
  }
}

TEST(PlanState, OfLayersThatAreExactNowStandsInTheWayOfALoad) {
  Held cluster;
  for (const auto& rank : cluster.ranks) {
    cluster.destroy(rank, 1);
  }
  EXPECT_TRUE(cluster.ranks[0]->member->may_load_state().ok());
  config::CompressionPolicy exact = cluster.policy;
  exact.defaults.codec = "none";
  cluster.coordinator->set_policy(config::policy_to_json(exact));
  cluster.create_on_all(cluster.ranks, gradient("b1", "w", kElements));
  ASSERT_EQ(cluster.bucket(0, 2).reducer->codec_name(), "none");
  EXPECT_THAT(cluster.ranks[0]->member->may_load_state().message(), ::testing::HasSubstr("b1"));
  // Sent, it leaves how its controllers stood.
  Held::operate(*cluster.engine(0).buckets.at(2)->reducer);
  EXPECT_EQ(cluster.bucket(0, 2).reducer->stats().residual_norm, 0);
  for (const auto& rank : cluster.ranks) {
    cluster.destroy(rank, 2);
  }
  const auto kept = cluster.nodes[0]->context->residuals->copy({7, "job", "0"});
  ASSERT_EQ(kept.size(), 1u);
  ASSERT_EQ(kept[0].layers.size(), 1u);
  EXPECT_FALSE(kept[0].layers[0].residual.kept);
  EXPECT_EQ(kept[0].layers[0].operations, 1u);
}

TEST(PlanState, OfOtherJobsDoesNotGiveWayToAChange) {
  Held cluster;
  NodeContext& node = *cluster.nodes[0]->context;
  node.residuals->keep({7, "gone", "1"}, "x", {layer_state("w", std::vector<float>(1'000'000))});
  cluster.quotas.bytes_per_user = node.quotas->held_bytes(7) + 1'000'000;
  node.quotas->set_limits(cluster.quotas);
  cluster.set_times(kFast);
  cluster.wait_for_rounds(9);
  EXPECT_TRUE(cluster.engine(1).logged("hold 1"));
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  EXPECT_EQ(node.residuals->kept_jobs(), 1u);
}

TEST(PlanState, IsSavedBeforeAnyChange) {
  Held cluster;
  auto source = cluster.ranks[0]->member->state_source();
  ASSERT_TRUE(source.ok());
  cluster.set_times(kFast);
  cluster.wait_for_rounds(14);
  EXPECT_TRUE(cluster.engine(1).logged("hold 1"));
  EXPECT_FALSE(cluster.engine(0).logged("hold 1"));
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  EXPECT_TRUE(cluster.engine(1).logged("go_on 1")) << "it was called off everywhere";
  source = Status(Code::kAborted, "over");
  cluster.wait_for_rounds(14);
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
  EXPECT_TRUE(cluster.ranks[3]->running());
}

TEST(PlanState, IsSavedBeforeAChangeThatIsAgreedOn) {
  Held cluster;
  cluster.engine(1).answers_holds = false;
  cluster.set_times(kFast);
  ASSERT_TRUE(cluster.until_told(1, "hold 1"));
  auto source = cluster.ranks[0]->member->state_source();
  ASSERT_TRUE(source.ok());
  for (const Work& late : std::exchange(cluster.engine(1).late_answers, {})) {
    late();
  }
  cluster.scheduler.settle();
  EXPECT_TRUE(cluster.engine(1).logged("let_begin 1 from 1"));
  EXPECT_FALSE(cluster.engine(0).logged("let_begin 1 from 1")) << "it is being saved here";
  source = Status(Code::kAborted, "over");
  cluster.scheduler.settle();
  EXPECT_TRUE(cluster.engine(0).logged("go_on 1"));
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
  EXPECT_TRUE(cluster.ranks[3]->running());
}

}  // namespace
}  // namespace gradwire::control::testing
