// What a bucket's layers are sent by, as its planner sees it.
#include "daemon/control/plan_candidates.h"

#include <gmock/gmock.h>

#include "daemon/control/cost_documents.h"
#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {
namespace {

config::CompressionPolicy all_layers_by(const std::string& codec) {
  config::CompressionPolicy policy;
  policy.defaults.codec = codec;
  return policy;
}

std::vector<std::string> codecs_of(const std::vector<config::PolicySettings>& settings) {
  std::vector<std::string> codecs;
  codecs.reserve(settings.size());
  for (const config::PolicySettings& each : settings) {
    codecs.push_back(each.codec);
  }
  return codecs;
}

TEST(PlanCandidates, HoldWhatSmallLayersAreSentByAfterAllOthers) {
  using ::testing::ElementsAre;
  EXPECT_THAT(codecs_of(plan_candidates(all_layers_by("laco"), {"int8"})), ElementsAre("laco", "int8", "l8"));
  EXPECT_THAT(codecs_of(plan_candidates(all_layers_by("lads"), {})), ElementsAre("lads"));
  EXPECT_THAT(codecs_of(plan_candidates(all_layers_by("int8"), {"l8"})), ElementsAre("int8", "l8"));
  config::CompressionPolicy never_small = all_layers_by("laco");
  never_small.defaults.dense_below = 0;
  EXPECT_THAT(codecs_of(plan_candidates(never_small, {})), ElementsAre("laco"));
}

TEST(PlanCandidates, CountALayerUnderDenseBelowAsItIsSent) {
  const config::CompressionPolicy policy = all_layers_by("laco");
  const auto candidates = plan_candidates(policy, {});
  Manifest manifest = gradient("b", "w", 2048);
  manifest.layers.emplace_back("bias", 2047);
  const planner::Workload laco = plan_workload(manifest, policy, candidates, 2);
  ASSERT_EQ(laco.parts.size(), 2u);
  EXPECT_EQ(laco.parts[0].codec, 0u);
  EXPECT_EQ(laco.parts[0].elements, 2048u);
  EXPECT_EQ(laco.parts[1].codec, 1u);
  EXPECT_EQ(laco.parts[1].elements, 2047u);
  const config::CompressionPolicy lads = all_layers_by("lads");
  const planner::Workload exact = plan_workload(manifest, lads, plan_candidates(lads, {}), 2);
  ASSERT_EQ(exact.parts.size(), 2u);
  EXPECT_EQ(exact.parts[1].codec, std::nullopt);
  EXPECT_EQ(exact.parts[1].elements, 2047u);
}

TEST(SoleSettings, AreThoseOfTheSmallLayersOnlyWhereThereAreNoOthers) {
  const config::CompressionPolicy policy = all_layers_by("laco");
  Manifest manifest = gradient("b", "w", 100);
  ASSERT_TRUE(sole_settings(manifest, policy));
  EXPECT_EQ(sole_settings(manifest, policy)->codec, "l8");
  manifest.layers.emplace_back("big", 4096);
  ASSERT_TRUE(sole_settings(manifest, policy));
  EXPECT_EQ(sole_settings(manifest, policy)->codec, "laco");
}

TEST(MeasureDocument, IsReadAsItWasWritten) {
  Measure measure{7, plan_candidates(all_layers_by("laco"), {"int8"})};
  measure.settings[0].density = 0.003;
  const Result<Measure> read = read_measure(*parse_document(write_document(measure_document(measure))));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->round, 7u);
  EXPECT_EQ(read->settings, measure.settings);
}

TEST(MeasureDocument, IsRefusedWithSettingsThatCannotBe) {
  const Json good = measure_document({1, plan_candidates(all_layers_by("laco"), {})});
  Json odd = good;
  odd["settings"][0]["codec"] = "lcao";
  EXPECT_EQ(read_measure(odd).status().code(), Code::kCorrupt);
  odd = good;
  odd["settings"] = Json::array();
  for (size_t i = 0; i <= kMaxCandidates; ++i) {
    odd["settings"].push_back(good["settings"][0]);
  }
  EXPECT_EQ(read_measure(odd).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace gradwire::control::testing
