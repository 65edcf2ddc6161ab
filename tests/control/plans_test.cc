// Plans through real members and a real coordinator, on virtual time, with engines that say what they are
// told.
#include <gmock/gmock.h>

#include "tests/control/plans_fixture.h"

namespace gradwire::control::testing {
namespace {

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
    // 16 times what the probe's 1 MiB takes, but for what an empty one does.
    EXPECT_NEAR(static_cast<double>(facts.exact_ns), 16e6 / (1 << 20) * 16.8e6, 5e6);
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
    config::PlanOptions plan = automatic();
    plan.bypass = bypass;
    Planned cluster(plan);
    const auto ranks = cluster.running_job();
    cluster.create_on_all(ranks, large());
    EXPECT_EQ(cluster.engine(0).probes, 0);
    EXPECT_EQ((**ranks[0]->bucket).codec, std::string(bypass) == "never" ? "laco" : "none");
  }
}

TEST(Plans, APinnedAlgorithmAndSegmentHold) {
  config::PlanOptions plan = automatic();
  plan.algorithm = "direct";
  plan.segment = 80'000;
  Planned cluster(plan);
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

TEST(Plans, MeasurementsThatComeWhileItIsBuiltPlanItALittleLater) {
  Planned cluster(automatic(), "topk", kFast);
  cluster.engine(1).answers_probes = false;
  const auto ranks = cluster.running_job();
  for (const auto& rank : ranks) {
    cluster.create(rank, large());
  }
  cluster.nodes[0]->workshop->closed = true;
  cluster.scheduler.advance(JobPlanner::kPatience);
  EXPECT_FALSE(ranks[0]->bucket);
  for (const Work& late : std::exchange(cluster.engine(1).late_answers, {})) {
    late();
  }
  cluster.scheduler.settle();
  cluster.nodes[0]->workshop->open();
  cluster.scheduler.settle();
  ASSERT_TRUE(ranks[0]->bucket && ranks[0]->bucket->ok());
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  cluster.scheduler.advance(seconds(11));
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
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
    ASSERT_TRUE(cluster.until_told(1, step));
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

TEST(Plans, ABucketThatIsDestroyedInTheMiddleHoldsUpNoOther) {
  for (const bool committed : {false, true}) {
    Planned cluster(automatic(), "topk");
    const auto ranks = cluster.running_job();
    cluster.create_on_all(ranks, large());
    cluster.create_on_all(ranks, large("b1"));
    (committed ? cluster.engine(1).idles : cluster.engine(1).answers_holds) = false;
    cluster.set_times(kFast);
    const char* const step = committed ? "let_begin 1 from 1" : "hold 1";
    ASSERT_TRUE(cluster.until_told(1, step));
    EXPECT_FALSE(cluster.engine(0).logged("hold 2")) << "one after the other";
    cluster.engine(1).answers_holds = cluster.engine(1).idles = true;
    for (const auto& rank : ranks) {
      cluster.destroy(rank, 1);
    }
    cluster.scheduler.settle();
    EXPECT_EQ(cluster.bucket(0, 2).reducer->codec_name(), "none");
    EXPECT_EQ(cluster.bucket(1, 2).reducer->codec_name(), "none");
    EXPECT_TRUE(ranks[3]->running());
  }
}

TEST(Plans, WhatABucketReallyDoesIsShown) {
  config::PlanOptions plan = pinned();
  plan.algorithm = "direct";
  Planned cluster(plan, "sign");
  config::PolicyRule rule;
  rule.match = "w2";
  rule.set.codec = "l8";
  cluster.policy.rules = {rule};
  cluster.coordinator->set_policy(config::policy_to_json(cluster.policy));
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, {"b0", 0, kBucketGradient, {{"w", 100'000}, {"w2", 100'000}}});
  EXPECT_EQ(cluster.bucket(0).plan->text, "mixed by ring, segments of 130048 bytes");
  cluster.create_on_all(ranks, {"b1", 0, kBucketGradient, {{"w2", 100'000}}});
  EXPECT_EQ(cluster.bucket(0, 2).plan->text, "l8 by direct, segments of 130048 bytes");
}

TEST(Plans, AReloadedPinChangesABucketInUse) {
  Planned cluster(automatic(), "topk");
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  config::PlanOptions plan = automatic();
  plan.bypass = "always";
  cluster.coordinator->set_plan(plan);
  cluster.scheduler.settle();
  EXPECT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
  EXPECT_EQ(cluster.bucket(0).plan->text, "none by ring, segments of 130048 bytes");
}

TEST(Plans, AReducerThatNobodyWantsIsFreedInTheWorkshop) {
  Planned cluster(automatic(), "topk", kFast);
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, large());
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
  const auto held = [&cluster] { return cluster.nodes[0]->context->quotas->held_bytes(7); };
  const uint64_t before = held();
  cluster.engine(1).answers_holds = false;
  config::PlanOptions plan = automatic();
  plan.bypass = "never";
  cluster.coordinator->set_plan(plan);
  cluster.scheduler.settle();
  ASSERT_TRUE(cluster.engine(0).logged("hold 1"));
  EXPECT_GT(held(), before + 4 * 4'000'000);
  cluster.nodes[0]->workshop->closed = true;
  cluster.scheduler.advance(seconds(5));
  ASSERT_TRUE(cluster.engine(0).logged("go_on 1")) << "it was called off";
  EXPECT_GT(held(), before) << "it is there, so it is charged";
  cluster.nodes[0]->workshop->open();
  EXPECT_EQ(held(), before);
}

}  // namespace
}  // namespace gradwire::control::testing
