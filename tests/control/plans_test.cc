// Plans through real members and a real coordinator, on virtual time, with engines that say what they are
// told.
#include <gmock/gmock.h>

#include "daemon/control/job_planner.h"
#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::HasSubstr;

constexpr engine::ProbeTimes kGigabit{200'000, 20'000, 17'000'000, 2'000'000};
// As fast as no codec is.
constexpr engine::ProbeTimes kFast{20'000, 2'000, 110'000, 100'000};

config::PlanOptions automatic() {
  config::PlanOptions plan;
  plan.bypass = "auto";
  plan.segment = 0;
  return plan;
}

struct Planned : TestCluster {
  explicit Planned(const config::PlanOptions& plan = automatic(), const std::string& codec = "laco",
                   const engine::ProbeTimes& times = kGigabit)
      : TestCluster({"a", "b"}) {
    policy.defaults.codec = codec;
    policy.defaults.warm_start_steps = 0;
    coordinator = std::make_unique<Coordinator>(
        scheduler,
        CoordinatorOptions{nodes[0]->context->self, seconds(2), seconds(10), config::policy_to_json(policy),
                           [](size_t bytes) { return std::string(bytes, 'k'); }, plan});
    set_times(times);
  }
  void set_times(const engine::ProbeTimes& times) {
    for (const auto& node : nodes) {
      node->engine->probe_times = times;
    }
  }
  FakeEngine& engine(size_t node) { return *nodes[node]->engine; }
  const engine::BucketSpec& bucket(size_t node, uint32_t id = 1) { return *engine(node).buckets.at(id); }
  // Measurements that say the same until the older ones do not count any more.
  void wait_for_rounds(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      scheduler.advance(seconds(61));
    }
  }
};

Manifest large(const std::string& name = "b0") {
  return gradient(name, "w", 4'000'000);
}

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
    EXPECT_TRUE(cluster.engine(node).logged("let_begin 1 from 8 flush"))
        << "operation 7 is the last, a flush";
    EXPECT_TRUE(cluster.engine(node).logged("go_on 1"));
  }
  // And back again, without a flush: there is nothing that an exact bucket keeps.
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

TEST(Plans, ResidualsSurviveABypass) {
  Planned cluster(automatic(), "topk");
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, gradient("b0", "w", 400'000));
  // One operation, so that there is something to lose.
  compress::BucketReducer& reducer = *cluster.engine(0).buckets.at(1)->reducer;
  std::vector<float> values(400'000);
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
  const double norm = reducer.stats().residual_norm;
  ASSERT_GT(norm, 0);
  cluster.set_times(kFast);
  cluster.wait_for_rounds(14);
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "none");
  cluster.set_times(kGigabit);
  cluster.wait_for_rounds(14);
  ASSERT_EQ(cluster.bucket(0).reducer->codec_name(), "topk");
  EXPECT_DOUBLE_EQ(cluster.bucket(0).reducer->stats().residual_norm, norm);
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
    const char* const step = committed ? "let_begin 1 from 2 flush" : "hold 1";
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

// The coordinator's side alone: what it makes of answers.
struct Changes {
  FakeScheduler scheduler;
  std::vector<Json> sent;
  std::vector<Status> over;
  PlanChanges changes{scheduler,
                      seconds(5),
                      2,
                      {[this](uint32_t node, const Json& document) {
                         if (node == 0) {
                           sent.push_back(document);
                         }
                       },
                       [this](uint32_t, const Plan&, const Status& status) { over.push_back(status); }}};
  Status say(uint32_t node, Json document) {
    const std::string type = document["type"];
    return changes.document(node, type, document);
  }
};

TEST(PlanChanges, TheHighestNumberThatIsNotBegunCounts) {
  Changes test;
  test.changes.begin(3, {}, false);
  ASSERT_TRUE(test.say(0, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 9}}).ok());
  ASSERT_TRUE(test.say(1, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 4}}).ok());
  ASSERT_EQ(test.sent.size(), 2u);
  EXPECT_EQ(test.sent[1]["type"], "plan_commit");
  EXPECT_EQ(test.sent[1]["from"], 9);
  for (uint32_t node = 0; node < 2; ++node) {
    EXPECT_TRUE(test.changes.changing(3));
    ASSERT_TRUE(test.say(node, {{"type", "plan_changed"}, {"bucket", 3}, {"change", 1}}).ok());
  }
  EXPECT_EQ(test.sent[2]["type"], "plan_go");
  ASSERT_EQ(test.over.size(), 1u);
  EXPECT_TRUE(test.over[0].ok());
  EXPECT_EQ(test.scheduler.timers(), 0u);
}

TEST(PlanChanges, OddAnswersAreRefused) {
  Changes test;
  test.changes.begin(3, {}, false);
  const auto code = [&test](const Json& document) { return test.say(0, document).code(); };
  EXPECT_EQ(code({{"type", "plan_held"}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 0}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", -1}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 2}, {"next", 1}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_changed"}, {"bucket", 3}, {"change", 1}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 4}, {"change", 1}, {"next", 1}}), Code::kOk);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}), Code::kOk);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}), Code::kCorrupt);
}

TEST(PlanChanges, ARefusalOrSilenceCancels) {
  for (const bool silence : {false, true}) {
    Changes test;
    test.changes.begin(3, {}, true);
    if (silence) {
      test.scheduler.advance(seconds(5));
    } else {
      ASSERT_TRUE(test.say(1, {{"type", "plan_failed"},
                               {"bucket", 3},
                               {"change", 1},
                               {"code", "resource_exhausted"},
                               {"message", "no memory"}})
                      .ok());
    }
    EXPECT_EQ(test.sent.back()["type"], "plan_cancel");
    ASSERT_EQ(test.over.size(), 1u);
    EXPECT_FALSE(test.over[0].ok());
    EXPECT_FALSE(test.changes.changing(3));
    EXPECT_TRUE(test.say(0, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}).ok());
    test.scheduler.settle();
  }
}

TEST(Measured, ComesBackAsItWas) {
  Measured measured;
  measured.round = 3;
  measured.costs.link = {1, 2, 0.5, 8};
  measured.costs.codecs.resize(2);
  measured.costs.codecs[1].relay.unit_ns = 0.75;
  const Json document = *parse_document(write_document(measured_document(measured)));
  const Result<Measured> read = read_measured(document, 2);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->round, 3u);
  EXPECT_EQ(read->costs.link.byte_wire_ns, 8);
  EXPECT_EQ(read->costs.codecs[1].relay.unit_ns, 0.75);
  EXPECT_EQ(read_measured(document, 1).status().code(), Code::kCorrupt);
  EXPECT_EQ(read_measured(document, 3).status().code(), Code::kCorrupt);
}

TEST(Measured, WhatCannotBeIsRefused) {
  const Json good = measured_document({1, {}});
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, Json>>{{"round", 0},
                                                 {"link", {1, 2, 3}},
                                                 {"link", {1, 2, 3, -1}},
                                                 {"link", {1, 2, 3, "4"}},
                                                 {"exact", {1, 2, 3, 4, 5, 6, 7, 1e300}},
                                                 {"codecs", {{1}}},
                                                 {"codecs", 5}}) {
    Json bad = good;
    bad[name] = value;
    EXPECT_EQ(read_measured(bad, 0).status().code(), Code::kCorrupt) << name << " " << value;
  }
  EXPECT_TRUE(read_measured(good, 0).ok());
}

TEST(PlanDocument, OddPlansAreRefused) {
  const Json good = plan_to_json({engine::Algorithm::kDirect, "l8", 80'000, 5, 6});
  const auto status = [&good](const std::string& name, const Json& value) {
    Json document{{"type", "bucket_ok"}, {"plan", good}};
    document["plan"][name] = value;
    Fields fields(document);
    read_plan(fields, 130'048);
    return fields.status();
  };
  EXPECT_TRUE(status("algorithm", "ring").ok());
  EXPECT_THAT(status("algorithm", "tree").message(), HasSubstr("neither ring nor direct"));
  EXPECT_THAT(status("codec", "zip").message(), HasSubstr("'zip', which is no codec here"));
  EXPECT_EQ(status("segment", 1000).code(), Code::kCorrupt);
  EXPECT_EQ(status("segment", 200'000).code(), Code::kCorrupt);
  EXPECT_EQ(status("expected_ns", -1).code(), Code::kCorrupt);
  EXPECT_EQ(status("codec", 7).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace gradwire::control::testing
