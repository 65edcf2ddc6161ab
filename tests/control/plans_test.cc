// Plans through real members and a real coordinator, on virtual time, with engines that say what they are
// told.
#include <gmock/gmock.h>

#include "tests/control/plans_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::HasSubstr;

TEST(Plans, AtOneGigabitABucketIsCompressed) {
  Planned cluster;
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  EXPECT_EQ((**ranks[0]->bucket).codec, "laco");
  for (size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(cluster.engine(node).probes, 1);
    const engine::PlanFacts& facts = *cluster.bucket(node).plan;
    EXPECT_EQ(facts.text, "laco by ring, segments of 130048 bytes");
    EXPECT_GT(facts.expected_ns, 0u);
    // 16 MB at 8 ns a byte, sent once and received once.
    EXPECT_NEAR(static_cast<double>(facts.exact_ns), 16e6 * 17e6 / (1 << 20), 30e6);
    EXPECT_LT(facts.expected_ns * 5, facts.exact_ns);
  }
}

TEST(Plans, WhereExactIsFasterItIsBypassed) {
  Planned cluster(automatic(), "topk", kFast);
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  for (size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(cluster.bucket(node).reducer->codec_name(), "none");
    EXPECT_EQ(cluster.bucket(node).plan->expected_ns, cluster.bucket(node).plan->exact_ns);
  }
}

TEST(Plans, TheSlowestNodeDecides) {
  Planned cluster(automatic(), "laco", kFast);
  cluster.engine(1).probe_times = kGigabit;
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "laco");
  EXPECT_EQ(cluster.bucket(1).reducer->codec_name(), "laco");
}

TEST(Plans, WhatIsPinnedIsNotMeasured) {
  for (const char* const bypass : {"never", "always"}) {
    config::PlanOptions pinned = automatic();
    pinned.bypass = bypass;
    Planned cluster(pinned);
    const auto ranks = cluster.running_job();
    cluster.create_on_all(ranks, large());
    EXPECT_EQ(cluster.engine(0).probes, 0);
    EXPECT_EQ((**ranks[0]->bucket).codec, std::string(bypass) == "never" ? "laco" : "none");
  }
}

TEST(Plans, APinnedAlgorithmAndSegmentHold) {
  config::PlanOptions pinned = automatic();
  pinned.algorithm = "direct";
  pinned.segment = 80'000;
  Planned cluster(pinned);
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  EXPECT_EQ(cluster.bucket(0).algorithm, engine::Algorithm::kDirect);
  for (const compress::Segment& segment : cluster.bucket(0).reducer->geometry().segments(0)) {
    EXPECT_LE(segment.max_bytes, 80'000u);
  }
}

TEST(Plans, AnotherCodecIsTakenOnlyIfItIsAllowed) {
  config::PlanOptions plan = automatic();
  plan.codecs = "l8";
  plan.bypass = "never";
  Planned cluster(plan, "topk", kFast);
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  EXPECT_EQ((**ranks[0]->bucket).codec, "l8");
}

TEST(Plans, WithoutMeasurementsTheBucketIsAsThePolicySays) {
  Planned cluster(automatic(), "laco", kFast);
  cluster.engine(1).answers_probes = false;
  const auto ranks = cluster.running_job();
  for (const auto& rank : ranks) {
    cluster.create(rank, large());
  }
  EXPECT_FALSE(ranks[0]->bucket) << "it waits for what the nodes measure";
  cluster.scheduler.advance(JobPlanner::kPatience);
  ASSERT_TRUE(ranks[0]->bucket && ranks[0]->bucket->ok());
  EXPECT_EQ((**ranks[0]->bucket).codec, "laco");
  EXPECT_EQ(cluster.bucket(0).plan->expected_ns, 0u);
  for (const Work& late : cluster.engine(1).late_answers) {
    late();
  }
  cluster.scheduler.settle();
  EXPECT_TRUE(ranks[0]->running()) << "a late answer is no offence";
}

TEST(Plans, ARunningBucketChangesWhereTheNetworkHas) {
  Planned cluster(automatic(), "topk");
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  cluster.engine(0).next_sequence = 5;
  cluster.engine(1).next_sequence = 7;
  cluster.set_times(kFast);
  cluster.wait_for_rounds(14);
  for (size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(cluster.bucket(node).reducer->codec_name(), "none");
    EXPECT_TRUE(cluster.engine(node).logged("let_begin 1 from 7"));
    EXPECT_TRUE(cluster.engine(node).logged("go_on 1"));
  }
  // And back again.
  cluster.set_times(kGigabit);
  cluster.wait_for_rounds(14);
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  EXPECT_TRUE(cluster.engine(0).logged("let_begin 1 from 7"));
  EXPECT_TRUE(ranks[0]->running());
}

TEST(Plans, TheSameMeasurementsChangeNothing) {
  Planned cluster;
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  cluster.wait_for_rounds(5);
  EXPECT_GE(cluster.engine(0).probes, 5);
  EXPECT_FALSE(cluster.engine(0).logged("hold 1"));
}

TEST(Plans, AChangeThatANodeIsTooSlowForIsGivenUp) {
  Planned cluster(automatic(), "topk");
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  cluster.engine(1).answers_holds = false;
  cluster.set_times(kFast);
  cluster.wait_for_rounds(9);
  EXPECT_TRUE(cluster.engine(0).logged("hold 1"));
  EXPECT_TRUE(cluster.engine(0).logged("go_on 1"));
  EXPECT_EQ(std::count(cluster.engine(0).log.begin(), cluster.engine(0).log.end(), "hold 1"), 1)
      << "it is not tried again at once";
  EXPECT_FALSE(cluster.engine(0).logged("change_bucket 1"));
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  for (const Work& late : std::exchange(cluster.engine(1).late_answers, {})) {
    late();
  }
  cluster.scheduler.settle();
  EXPECT_TRUE(ranks[3]->running());
}

TEST(Plans, ADeathInTheMiddleEndsTheEpochAsEver) {
  for (const bool committed : {false, true}) {
    Planned cluster(automatic(), "topk");
    const auto ranks = cluster.running_job();
    cluster.create_on_all(ranks, large());
    (committed ? cluster.engine(1).idles : cluster.engine(1).answers_holds) = false;
    cluster.set_times(kFast);
    const char* const step = committed ? "let_begin 1 from 1" : "hold 1";
    for (int i = 0; i < 2000 && !cluster.engine(1).logged(step); ++i) {
      cluster.scheduler.advance(milliseconds(500));
    }
    ASSERT_TRUE(cluster.engine(1).logged(step));
    *cluster.nodes[1]->cut = true;
    cluster.scheduler.advance(seconds(30));
    EXPECT_FALSE(ranks[0]->running());
    EXPECT_TRUE(cluster.engine(0).logged("abort_job"));
    for (const Work& late : std::exchange(cluster.engine(1).late_answers, {})) {
      late();
    }
    cluster.scheduler.advance(seconds(30));
  }
}

TEST(Plans, ABucketThatIsDestroyedMeanwhileIsForgotten) {
  Planned cluster(automatic(), "topk");
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  for (const auto& rank : ranks) {
    cluster.destroy(rank, 1);
  }
  cluster.set_times(kFast);
  cluster.wait_for_rounds(14);
  EXPECT_TRUE(ranks[0]->running());
  EXPECT_FALSE(cluster.engine(0).logged("hold 1"));
}

}  // namespace
}  // namespace gradwire::control::testing
