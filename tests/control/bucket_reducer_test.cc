// What a policy becomes in the compression of a bucket.
#include "daemon/control/bucket_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST(Policy, OfEveryCodecMakesAReducerOfThatName) {
  for (const std::string_view name : compress::codec_names()) {
    config::CompressionPolicy policy;
    policy.defaults.codec = name;
    const auto reducer = make_reducer(manifest(), 2, 130048, policy, 1);
    ASSERT_TRUE(reducer.ok()) << reducer.status().message();
    EXPECT_EQ((*reducer)->codec_name(), name);
  }
}

TEST(Policy, OfFinerStepsChangesTheBytes) {
  config::CompressionPolicy policy;
  policy.defaults.codec = "l8";
  const auto coarse = make_reducer(manifest(), 2, 130048, policy, 1).value()->wire_variant();
  policy.defaults.steps_per_octave = "16";
  EXPECT_NE(make_reducer(manifest(), 2, 130048, policy, 1).value()->wire_variant(), coarse);
}

}  // namespace
}  // namespace gradwire::control
