// When a coordinator's planner measures and which buckets it gives another plan.
#include <gmock/gmock.h>

#include <deque>
#include <set>

#include "config/policy_json.h"
#include "daemon/control/job_planner.h"
#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {
namespace {

constexpr double kSlowWire = 8, kFastWire = 0.01;  // ns a byte

// Two nodes that answer at once, and alike.
struct Planning {
  FakeScheduler scheduler;
  config::PlanOptions options = pinned();
  config::CompressionPolicy policy;
  std::deque<Json> sent;  // to node 0, that nobody has looked at
  double wire = kSlowWire;
  std::map<uint32_t, Plan> plans;
  JobPlanner planner{
      scheduler, seconds(300), 2, 130'048,
      JobPlanner::Hooks{[this](uint32_t node, const Json& document) {
                          if (node == 0) {
                            sent.push_back(document);
                          }
                        },
                        [this] { return config::policy_to_json(policy); }, [this] { return options; },
                        [](uint32_t bucket) { return std::to_string(bucket); }}};

  explicit Planning(const std::string& codec = "topk") {
    options.bypass = "auto";
    policy.defaults.codec = codec;
  }

  void plan(uint32_t bucket, uint64_t elements = 4'000'000) {
    planner.plan(bucket, gradient("b", "w", elements),
                 [this, bucket](const Json&, const Plan& plan) { plans[bucket] = plan; });
  }
  void say(Json document) {
    for (uint32_t node = 0; node < 2; ++node) {
      const Status status = planner.document(node, document["type"], document);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  void measured(const Json& document) {
    const Result<Measure> asked = read_measure(document);
    ASSERT_TRUE(asked.ok()) << asked.status().message();
    Measured measured;
    measured.round = asked->round;
    measured.costs.link = {10'000, 2'000, 0.05, wire};
    measured.costs.exact = {{0, 0.3}, {0, 0.4}, {0, 0.3}, 4, 4};
    measured.costs.codecs.resize(asked->settings.size(), {{0, 10}, {0, 10}, {0, 0.1}, 0.02, 1});
    say(measured_document(measured));
  }
  // The first round: what the candidates cost, in their order.
  void measured_first(std::vector<planner::CodecCost> codecs) {
    sent.clear();
    Measured measured;
    measured.round = 1;
    measured.costs.link = {10'000, 2'000, 0.05, wire};
    measured.costs.codecs = std::move(codecs);
    say(measured_document(measured));
  }
  void refuse_first_change() {
    const Status status = planner.document(
        1, "plan_failed",
        {{"bucket", 1}, {"change", 1}, {"code", "resource_exhausted"}, {"message", "no memory"}});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // What the nodes answer to all that they have been sent; changes that have begun: bucket and codec.
  std::vector<std::pair<uint32_t, std::string>> answer(bool changes = true) {
    std::vector<std::pair<uint32_t, std::string>> begun;
    while (!sent.empty()) {
      const Json document = sent.front();
      sent.pop_front();
      const std::string type = document["type"];
      if (type == "measure") {
        measured(document);
      } else if (type == "plan_prepare") {
        begun.emplace_back(document["bucket"], document["plan"]["codec"]);
        if (changes) {
          say({{"type", "plan_held"},
               {"bucket", document["bucket"]},
               {"change", document["change"]},
               {"next", 1}});
        }
      } else if (type == "plan_commit") {
        say({{"type", "plan_changed"}, {"bucket", document["bucket"]}, {"change", document["change"]}});
      }
    }
    return begun;
  }
  bool measures_within(Nanoseconds time) {
    scheduler.advance(time);
    return std::any_of(sent.begin(), sent.end(), [](const Json& each) { return each["type"] == "measure"; });
  }
};

using Begun = std::vector<std::pair<uint32_t, std::string>>;

TEST(JobPlanner, ABucketThatWasNotMeasuredIsPlannedWhenMeasurementsCome) {
  Planning test;
  test.wire = kFastWire;
  test.planner.begin();
  test.plan(1);
  ASSERT_TRUE(test.plans.empty());
  test.scheduler.advance(JobPlanner::kPatience);
  ASSERT_EQ(test.plans[1].codec, "policy");
  EXPECT_EQ(test.answer(), (Begun{{1, "none"}}));
}

TEST(JobPlanner, APinHoldsForBucketsInUseAtOnce) {
  Planning test;
  test.planner.begin();
  test.answer();
  test.plan(1);
  ASSERT_EQ(test.plans[1].codec, "policy");
  test.options.bypass = "always";
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), (Begun{{1, "none"}}));
  test.options.bypass = "never";
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), (Begun{{1, "policy"}}));
  test.options.segment = 80'000;
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), (Begun{{1, "policy"}}));
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), Begun{});
}

TEST(JobPlanner, ACodecThatIsNoLongerAllowedGivesWay) {
  Planning test("fp16");
  test.options.bypass = "never";
  test.options.codecs = "l8";
  test.planner.begin();
  test.measured_first({{{0, 0.3}, {0, 0.4}, {0, 0.3}, 2, 2}, {{0, 0.3}, {0, 0.4}, {0, 0.3}, 1, 1}});
  test.plan(1);
  ASSERT_EQ(test.plans[1].codec, "l8");
  test.options.codecs = "";
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), (Begun{{1, "policy"}}));
}

TEST(JobPlanner, MomentumKeepsItsCodecUnderAnyPin) {
  Planning test;
  test.policy.defaults.momentum = 0.9;
  test.planner.begin();
  test.answer();
  test.plan(1);
  test.options.bypass = "always";
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), Begun{});
}

TEST(JobPlanner, MomentumFollowsPinsOfAlgorithmAndSegmentUnderACodecThatIsNoLongerListed) {
  Planning test("topk");
  test.policy.defaults.momentum = 0.9;
  test.options.bypass = "never";
  test.options.codecs = "fp16";
  test.planner.begin();
  test.wire = kFastWire;
  test.measured_first({{{0, 90}, {0, 90}, {0, 90}, 1, 1},
                       {{0, 0.3}, {0, 0.4}, {0, 0.3}, 2, 2},
                       {{0, 90}, {0, 90}, {0, 90}, 1, 1}});
  test.plan(1);
  ASSERT_EQ(test.plans[1].codec, "fp16");
  test.options.codecs = "";
  test.options.segment = 80'000;
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), (Begun{{1, "fp16"}}));
}

TEST(JobPlanner, ABucketOfSmallLayersIsBypassedWhereItWouldBeCoded) {
  for (const auto* codec : {"fp16", "l8", "int4", "onebit", "sign", "topk", "laco"}) {
    Planning test(codec);
    test.options.bypass = "always";
    test.planner.begin();
    test.plan(1, 500);
    EXPECT_EQ(test.plans[1].codec, "none") << codec;
  }
  for (const auto* codec : {"lads", "dropping"}) {
    Planning test(codec);
    test.options.bypass = "always";
    test.planner.begin();
    test.plan(1, 500);
    EXPECT_EQ(test.plans[1].codec, "policy") << codec << " sends it exactly anyway";
  }
}

TEST(JobPlanner, ABucketCreatedUnderAnotherPolicyIsPlannedByMeasurementToo) {
  Planning test;
  test.wire = kFastWire;
  test.options.bypass = "never";
  test.planner.begin();
  test.plan(1);
  ASSERT_EQ(test.plans[1].codec, "policy");
  test.options.bypass = "auto";
  test.policy.defaults.density = 0.05;
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), (Begun{{1, "none"}}));
}

TEST(JobPlanner, APinReachesThousandsOfBuckets) {
  constexpr uint32_t kMany = 4200;
  Planning test;
  test.options.bypass = "never";
  test.planner.begin();
  for (uint32_t bucket = 1; bucket <= kMany; ++bucket) {
    test.plan(bucket);
  }
  test.options.bypass = "always";
  test.planner.options_changed();
  std::set<uint32_t> changed;
  for (uint32_t turn = 0; turn < kMany && changed.size() < kMany; ++turn) {
    for (const auto& [bucket, codec] : test.answer()) {
      EXPECT_EQ(codec, "none");
      EXPECT_TRUE(changed.insert(bucket).second);
    }
    test.scheduler.advance(Nanoseconds(0));
  }
  EXPECT_EQ(changed.size(), kMany);
}

TEST(JobPlanner, MeasuresAsLongAsTheOptionsLeaveAChoice) {
  Planning test;
  test.options.bypass = "never";
  test.planner.begin();
  EXPECT_FALSE(test.measures_within(std::chrono::hours(1)));
  test.options.bypass = "auto";
  test.planner.options_changed();
  EXPECT_TRUE(test.measures_within(Nanoseconds(0)));
  test.answer();
  EXPECT_TRUE(test.measures_within(seconds(61)));
  test.answer();
  test.options.bypass = "always";
  test.planner.options_changed();
  EXPECT_FALSE(test.measures_within(std::chrono::hours(1)));
}

TEST(JobPlanner, TwoNodesThatSendEverythingExactlyMeasureNothing) {
  Planning test("none");
  test.options.algorithm = "auto";
  test.options.codecs = "l8";
  test.planner.begin();
  EXPECT_FALSE(test.measures_within(std::chrono::hours(1)));
  config::PolicyRule rule;
  rule.match = "*";
  rule.set.codec = "topk";
  test.policy.rules = {rule};
  test.plan(1);
  EXPECT_TRUE(test.measures_within(Nanoseconds(0)));
}

TEST(JobPlanner, OneBucketChangesAtATime) {
  Planning test;
  test.planner.begin();
  test.answer();
  for (uint32_t bucket = 1; bucket <= 3; ++bucket) {
    test.plan(bucket);
  }
  test.options.bypass = "always";
  test.planner.options_changed();
  EXPECT_EQ(test.answer(false), (Begun{{1, "none"}}));
  // Which is destroyed instead of getting there.
  test.planner.destroyed(1);
  EXPECT_EQ(test.answer(), (Begun{{2, "none"}, {3, "none"}}));
}

TEST(JobPlanner, WhatFailedIsTriedAgainMuchLater) {
  Planning test;
  test.planner.begin();
  test.answer();
  test.plan(1);
  test.options.bypass = "always";
  test.planner.options_changed();
  ASSERT_EQ(test.answer(false).size(), 1u);
  test.refuse_first_change();
  EXPECT_EQ(test.answer(), Begun{});
  test.scheduler.advance(seconds(590));
  EXPECT_EQ(test.answer(), Begun{});
  test.scheduler.advance(seconds(10));
  EXPECT_EQ(test.answer(), (Begun{{1, "none"}}));
}

TEST(JobPlanner, ADestroyedBucketIsForgotten) {
  Planning test;
  test.planner.begin();
  test.answer();
  test.plan(1);
  test.planner.destroyed(1);
  test.options.bypass = "always";
  test.planner.options_changed();
  EXPECT_EQ(test.answer(), Begun{});
}

}  // namespace
}  // namespace gradwire::control::testing
