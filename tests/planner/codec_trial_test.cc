#include "daemon/planner/codec_trial.h"

#include <gtest/gtest.h>

#include <memory>

namespace gradwire::planner {
namespace {

// Every look at it is a microsecond later.
std::function<uint64_t()> steady_clock() {
  return [now = uint64_t{0}]() mutable { return now += 1000; };
}

CodecCost trial(const std::string& codec, double density = 0.01) {
  compress::CodecSettings settings;
  settings.codec = codec;
  settings.density = density;
  const Result<CodecCost> cost = try_codec(settings, steady_clock());
  EXPECT_TRUE(cost.ok()) << cost.status().message();
  return cost.ok() ? *cost : CodecCost{};
}

TEST(CodecTrial, MeasuresEveryCodec) {
  for (const std::string_view name : compress::codec_names()) {
    const CodecCost cost = trial(std::string(name));
    EXPECT_GT(cost.bytes_per_element, 0) << name;
    EXPECT_LE(cost.bytes_per_element, cost.most_bytes_per_element * 1.001) << name;
    EXPECT_NEAR(cost.relay.fixed_ns, 1000, 1) << name;
    EXPECT_NEAR(cost.relay.unit_ns, 0, 1e-9) << name;
  }
}

TEST(CodecTrial, KnowsWhatAnElementTakes) {
  EXPECT_DOUBLE_EQ(trial("none").bytes_per_element, 4);
  EXPECT_NEAR(trial("l8").bytes_per_element, 1, 0.01);
  EXPECT_NEAR(trial("fp16").bytes_per_element, 2, 0.01);
}

TEST(CodecTrial, SparseCodecsAreMeasuredNearTheirDensity) {
  EXPECT_LT(trial("laco", 0.01).bytes_per_element, 0.03);
  EXPECT_LT(trial("laco", 0.1).bytes_per_element, 0.25);
  EXPECT_GT(trial("laco", 0.1).bytes_per_element, trial("laco", 0.01).bytes_per_element);
}

TEST(CodecTrial, WaitingForTheProcessorMakesItSlower) {
  compress::CodecSettings settings;
  settings.codec = "none";
  const auto now = std::make_shared<uint64_t>(0);
  const Result<CodecCost> cost = try_codec(
      settings, [now] { return *now += 1000; }, [now] { return *now / 4; });
  ASSERT_TRUE(cost.ok());
  EXPECT_NEAR(cost->relay.fixed_ns, 4000, 100);
}

TEST(CodecTrial, SettingsThatDoNotExistAreRefused) {
  compress::CodecSettings settings;
  settings.codec = "zip";
  EXPECT_EQ(try_codec(settings, steady_clock()).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
