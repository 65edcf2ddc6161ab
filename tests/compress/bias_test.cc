// The mean of what a codec delivers is the mean of what it was given, within the standard error.
#include <array>
#include <cmath>
#include <limits>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

struct Case {
  const char* codec;
  Rounding rounding;
  bool error_feedback;
};

class Bias : public testing::TestWithParam<Case> {};

// Element by element over 10,000 operations of other gradients. What a residual still holds is known, so only
// rounding without memory is left to chance; the bound is five standard errors of the observed differences.
TEST_P(Bias, IsWithinItsStandardErrorOverTenThousandTrials) {
  const Case& tried = GetParam();
  for (const uint32_t nodes : {2U, 4U, 8U}) {
    const BucketShape shape = shape_of({64 * 8}, nodes);
    CodecSettings settings = codec(tried.codec);
    settings.rounding = tried.rounding;
    settings.error_feedback = tried.error_feedback;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    std::mt19937 random(nodes);
    std::normal_distribution<float> normal(0.1F, 1.0F);
    double sum = 0;
    double squares = 0;
    double true_sum = 0;
    uint64_t count = 0;
    for (int trial = 0; trial < 10000; ++trial) {
      if (trial % 16 == 0) {
        buffers.fill([&] { return normal(random); });
      }
      ASSERT_TRUE(*ring.run(operation(ReduceOp::kSum, nodes), buffers.locals(), buffers.result_starts()));
      double delivered = 0;
      double given = 0;
      for (size_t i = 0; i < buffers.results[0].size(); ++i) {
        delivered += static_cast<double>(buffers.results[0][i]);
        for (const auto& node : buffers.gradients) {
          given += static_cast<double>(node[0][i]);
        }
      }
      const double difference = delivered - given;
      sum += difference;
      squares += difference * difference;
      true_sum += std::abs(given);
      ++count;
    }
    const double mean = sum / static_cast<double>(count);
    const double deviation = std::sqrt(squares / static_cast<double>(count) - mean * mean);
    EXPECT_LT(std::abs(mean), 5 * deviation / std::sqrt(static_cast<double>(count)) + 1e-6 * true_sum / 10000)
        << tried.codec << " with " << nodes << " nodes";
  }
}

INSTANTIATE_TEST_SUITE_P(
    DenseCodecs, Bias,
    testing::Values(Case{"fp16", Rounding::kNearest, true}, Case{"bf16", Rounding::kNearest, true},
                    Case{"l8", Rounding::kNearest, true}, Case{"l8", Rounding::kStochastic, false},
                    Case{"int8", Rounding::kNearest, true}, Case{"int8", Rounding::kStochastic, false},
                    Case{"int4", Rounding::kNearest, true}, Case{"int4", Rounding::kStochastic, false},
                    Case{"onebit", Rounding::kNearest, true}),
    [](const auto& tried) {
      return std::string(tried.param.codec) +
             (tried.param.rounding == Rounding::kStochastic ? "Stochastic" : "Nearest");
    });

class SparseBias : public testing::TestWithParam<const char*> {};

// 1,000 steps of fresh gradients with a mean: what was delivered and what is held are all of them, element by
// element, and no more is missing in the mean than what is held, which is some ten steps' worth of dropping
// and twenty of the others at 2%.
TEST_P(SparseBias, IsNoMoreThanTheResidualAfterAThousandSteps) {
  constexpr uint32_t kNodes = 4;
  constexpr int kSteps = 1000;
  constexpr size_t kElements = 8192;
  constexpr double kMean = 0.1;
  const BucketShape shape = shape_of({kElements}, kNodes);
  LoopbackRing ring = compressed_ring(shape, codec(GetParam(), 0.02, 10));
  RingBuffers buffers(shape, 1);
  std::mt19937 random(11);
  std::normal_distribution<float> normal(kMean, 1.0F);
  std::vector<double> given(kElements);
  std::vector<double> delivered(kElements);
  std::vector<double> bound(kElements);
  for (int step = 0; step < kSteps; ++step) {
    buffers.fill([&] { return normal(random); });
    ASSERT_TRUE(run_sum(ring, buffers));
    for (size_t i = 0; i < kElements; ++i) {
      double magnitude = std::abs(static_cast<double>(buffers.results[0][i]));
      delivered[i] += static_cast<double>(buffers.results[0][i]);
      for (uint32_t n = 0; n < kNodes; ++n) {
        const auto gradient = static_cast<double>(buffers.gradients[n][0][i]);
        given[i] += gradient;
        magnitude += std::abs(gradient) + std::abs(static_cast<double>(ring.node(n).residual()[i]));
      }
      bound[i] += kNodes * magnitude;  // as in conservation_test.cc
    }
  }
  double delivered_sum = 0;
  double held_sum = 0;
  for (size_t i = 0; i < kElements; ++i) {
    double held = 0;
    for (uint32_t n = 0; n < kNodes; ++n) {
      held += static_cast<double>(ring.node(n).residual()[i]);
    }
    ASSERT_NEAR(delivered[i] + held, given[i], std::numeric_limits<float>::epsilon() * bound[i]) << i;
    delivered_sum += delivered[i];
    held_sum += held;
  }
  const double count = static_cast<double>(kElements) * kSteps;
  const double standard_error = std::sqrt(kNodes / count);
  EXPECT_NEAR(delivered_sum / count, kNodes * kMean, 5 * standard_error + std::abs(held_sum) / count);
  const double steps_held = held_sum / (kElements * kNodes * kMean);
  EXPECT_GT(steps_held, 8);
  EXPECT_LT(steps_held, 25);
}

INSTANTIATE_TEST_SUITE_P(SparseCodecs, SparseBias, testing::Values("lads", "laco", "topk", "dropping"),
                         [](const auto& name) { return std::string(name.param); });

// Layers of one bucket that differ by orders of magnitude: a codec with a scale for the whole bucket would
// lose the small ones.
TEST(SmallLayers, AreAsPreciseAsTheLargeOneBesideThem) {
  for (const auto& [name, bound] :
       {std::pair{"fp16", 0.001}, {"bf16", 0.01}, {"l8", 0.08}, {"int8", 0.03}, {"int4", 0.25}}) {
    const BucketShape shape = shape_of({20000, 20000, 20000, 20000}, 4);
    LoopbackRing ring = compressed_ring(shape, codec(name));
    RingBuffers buffers(shape, 1);
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    const std::array<float, 4> scales = {1, 0.1F, 0.01F, 0.001F};
    size_t at = 0;
    buffers.fill([&] { return scales[at++ / 20000 % 4] * normal(random); });
    ASSERT_TRUE(*ring.run(operation(ReduceOp::kSum, 4), buffers.locals(), buffers.result_starts()));
    for (size_t layer = 0; layer < 4; ++layer) {
      double off = 0;
      double energy = 0;
      for (size_t i = layer * 20000; i < (layer + 1) * 20000; ++i) {
        double given = 0;
        for (const auto& node : buffers.gradients) {
          given += static_cast<double>(node[0][i]);
        }
        off += std::pow(static_cast<double>(buffers.results[0][i]) - given, 2);
        energy += given * given;
      }
      EXPECT_LT(std::sqrt(off / energy), bound) << name << ", layer scaled " << scales[layer];
    }
  }
}

}  // namespace
}  // namespace gradwire::compress
