// What a policy becomes in the compression of a bucket.
#include "daemon/control/bucket_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "compress/codecs/codec.h"
#include "config/options.h"

namespace gradwire::control {
namespace {

Manifest manifest() {
  Manifest manifest;
  manifest.name = "bucket";
  manifest.flags = kBucketGradient;
  manifest.layers = {{"weight", 10000}, {"bias", 100}};
  return manifest;
}

TEST(Policy, KnowsExactlyTheCodecsOfTheTable) {
  const auto* const option = config::find_option("compression.codec");
  ASSERT_NE(option, nullptr);
  const auto names = compress::codec_names();
  EXPECT_TRUE(std::equal(names.begin(), names.end(), option->choices.begin(), option->choices.end()));
}

TEST(Policy, LetsEveryCodecThatSumsStandInForAnother) {
  const auto* const option = config::find_option("plan.codecs");
  ASSERT_NE(option, nullptr);
  for (const compress::CodecRow& row : compress::codec_table()) {
    const bool sums = row.kind == compress::CodecKind::kHop && row.name != "none";
    EXPECT_EQ(std::ranges::find(option->choices, row.name) != option->choices.end(), sums) << row.name;
  }
}

TEST(Policy, OfEveryCodecMakesAReducerOfThatName) {
  for (const std::string_view name : compress::codec_names()) {
    config::CompressionPolicy policy;
    policy.defaults.codec = name;
    const auto reducer = make_reducer(manifest(), {2, 1, 130048}, policy);
    ASSERT_TRUE(reducer.ok()) << reducer.status().message();
    EXPECT_EQ((*reducer)->codec_name(), name);
  }
}

TEST(Policy, OfFinerStepsChangesTheBytes) {
  config::CompressionPolicy policy;
  policy.defaults.codec = "l8";
  const auto coarse = make_reducer(manifest(), {2, 1, 130048}, policy).value()->wire_variant();
  policy.defaults.steps_per_octave = "16";
  EXPECT_NE(make_reducer(manifest(), {2, 1, 130048}, policy).value()->wire_variant(), coarse);
}

TEST(Policy, OfResidualsInBf16ChargesHalfOfThem) {
  config::CompressionPolicy policy;
  policy.defaults.codec = "laco";
  const BucketPlace place{2, 1, 130048};
  const uint64_t floats = residual_bytes(manifest(), place, policy);
  policy.rules.resize(1);
  policy.rules[0].match = "weight";
  policy.rules[0].set.residuals = "bf16";
  // Of the weights' two residuals, less what a block of them takes while it is summed.
  EXPECT_EQ(residual_bytes(manifest(), place, policy), floats - 2 * 2 * 10000 + 4 * 10000);
  EXPECT_EQ(make_reducer(manifest(), place, policy).value()->stats().residual_bytes,
            residual_bytes(manifest(), place, policy));
}

TEST(Policy, OfMomentumKeepsSomethingWhateverTheCodec) {
  config::CompressionPolicy policy;
  EXPECT_FALSE(has_residuals(manifest(), policy));
  policy.defaults.momentum = 0.9;
  EXPECT_TRUE(has_residuals(manifest(), policy));
  policy.defaults.momentum = 0;
  policy.defaults.codec = "l8";
  EXPECT_TRUE(has_residuals(manifest(), policy));
}

TEST(Plan, IsDirectOnlyWhereSharesCanBeSummedAtTheirOwner) {
  config::CompressionPolicy policy;
  policy.defaults.codec = "laco";
  EXPECT_EQ(algorithm_for(manifest(), policy, engine::Algorithm::kDirect), engine::Algorithm::kDirect);
  EXPECT_EQ(algorithm_for(manifest(), policy, engine::Algorithm::kRing), engine::Algorithm::kRing);
  policy.defaults.codec = "sign";
  EXPECT_EQ(algorithm_for(manifest(), policy, engine::Algorithm::kDirect), engine::Algorithm::kRing);
  policy.defaults.codec = "none";
  Manifest integers = manifest();
  integers.dtype = static_cast<uint8_t>(compress::Dtype::kInt32);
  EXPECT_EQ(algorithm_for(integers, policy, engine::Algorithm::kDirect), engine::Algorithm::kRing);
  const auto reducer = make_reducer(manifest(), {4, 1, 130048, engine::Algorithm::kDirect}, policy);
  ASSERT_TRUE(reducer.ok()) << reducer.status().message();
  EXPECT_TRUE((*reducer)->collects());
  EXPECT_FALSE(has_residuals(manifest(), policy));
  EXPECT_GT(residual_bytes(manifest(), {4, 1, 130048, engine::Algorithm::kDirect}, policy), 0U);
}

}  // namespace
}  // namespace gradwire::control
