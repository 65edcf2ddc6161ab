// Where alpha starts after a dense stage, and how it follows the densities of a warm start.
#include "compress/calibration.h"

#include <boost/math/distributions/normal.hpp>
#include <cmath>

#include "compress/lads.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

constexpr double kGauss = 0.7978845608;
constexpr double kLaplace = 0.7071067812;

TEST(Calibration, FindsTheAlphaOfKnownDistributions) {
  const boost::math::normal normal;
  for (const double density : {0.8, 0.25, 0.0625, 0.02}) {
    SCOPED_TRACE(density);
    EXPECT_NEAR(calibrated_alpha(kGauss, density), boost::math::quantile(normal, 1 - density / 2), 0.005);
    const double laplace = -std::log(density) / std::sqrt(2.0);
    EXPECT_NEAR(calibrated_alpha(kLaplace, density), std::min(laplace, 2.4), 0.005);
  }
  // A value's square root is Laplacian: beta = 1/2, which has a kappa of 0.548.
  EXPECT_NEAR(calibrated_alpha(0.5477, 0.25), std::pow(2.6926, 2) / std::sqrt(120.0), 0.005);
}

TEST(Calibration, StaysWithinWhatALoopCanFollow) {
  for (const double dispersion : {1e-300, 0.1, 0.5, 0.87, 1.0}) {
    double before = 2.4;
    for (const double density : {1e-300, 1e-6, 0.001, 0.01, 0.1, 0.5, 0.9999, 1.0}) {
      const double alpha = calibrated_alpha(dispersion, density);
      EXPECT_GE(alpha, 0.1);
      EXPECT_LE(alpha, before) << "more elements need a lower threshold";
      before = alpha;
    }
  }
}

// Nor those of a library's functions: they stay below the change that is made here.
TEST(Calibration, DoesNotSeeTheLastBitsOfADispersion) {
  for (double dispersion = 0.4; dispersion < 0.86; dispersion += 1.0 / 1024) {
    const double on_grid = std::round(dispersion * 1024) / 1024;
    for (const double density : {0.25, 0.0625, 0.015625, 0.01, 0.004, 0.001}) {
      const double alpha = calibrated_alpha(on_grid, density);
      EXPECT_EQ(calibrated_alpha(on_grid * (1 + 1e-12), density), alpha);
      EXPECT_EQ(calibrated_alpha(on_grid * (1 - 1e-12), density), alpha);
      EXPECT_EQ(calibrated_alpha(on_grid, density * (1 + 1e-12)), alpha);
      EXPECT_EQ(calibrated_alpha(on_grid, density * (1 - 1e-12)), alpha);
    }
  }
}

TEST(Calibration, OfAWalkIsItsMeanTimeToLeave) {
  EXPECT_NEAR(walk_alpha(0.01), 9.417, 1e-12);
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const double density : {0.0625, 0.01}) {
    const double alpha = walk_alpha(density);
    double at = 0;
    int left = 0;
    constexpr int kSteps = 500000;
    for (int i = 0; i < kSteps; ++i) {
      at += normal(random);
      if (std::abs(at) > alpha) {
        at = 0;
        ++left;
      }
    }
    EXPECT_NEAR(static_cast<double>(left) / kSteps, density, 0.05 * density);
  }
}

LayerControl control(CodecSettings settings = {}) {
  settings.warm_start_steps = 10;
  return {settings, 0.01};
}

TEST(Calibration, SetsTheFirstAlphaAndMovesItWithTheDensity) {
  LayerControl layer = control();
  EXPECT_EQ(layer.alpha_for(0.25), 1.7) << "nothing is known";
  layer.observe(kLaplace);
  layer.observe(kLaplace);
  const double first = calibrated_alpha(kLaplace, 0.25);
  const double second = calibrated_alpha(kLaplace, 0.0625);
  EXPECT_EQ(layer.alpha_for(0.25), first);
  EXPECT_EQ(layer.alpha_for(0.0625), second);
  layer.adjust(0.5, 0.25);
  const double moved = first * std::exp(0.05 * std::log(2.0));
  EXPECT_NEAR(layer.alpha_for(0.25), moved, 1e-12);
  EXPECT_NEAR(layer.alpha_for(0.0625), moved * second / first, 1e-12);
  layer.adjust(0.0625, 0.0625);
  EXPECT_NEAR(layer.state().alpha, moved * second / first, 1e-12);
  EXPECT_EQ(layer.state().aimed, 0.0625);
}

TEST(Calibration, IsTheMeanOfDenseOperations) {
  LayerControl layer = control();
  for (const double nothing : {0.0, -1.0, 1.5, static_cast<double>(NAN)}) {
    layer.observe(nothing);
  }
  EXPECT_EQ(layer.state().dispersion, 0);
  layer.observe(0.8);
  layer.observe(0.4);
  EXPECT_DOUBLE_EQ(layer.state().dispersion, 0.75);
}

TEST(Calibration, IsNotForLayersThatItDoesNotFit) {
  CodecSettings settings;
  settings.sparse_rows = true;
  EXPECT_FALSE(control(settings).wants_dispersion());
  settings = {};
  settings.norm_of = NormOf::kGradient;
  EXPECT_FALSE(control(settings).wants_dispersion());
  EXPECT_EQ(control(settings).alpha_for(0.25), walk_alpha(0.25));
  settings.error_feedback = false;
  EXPECT_EQ(control(settings).alpha_for(0.25), 1.7);
  settings = {};
  settings.warm_start_steps = 0;
  EXPECT_FALSE(LayerControl(settings, 0.01).wants_dispersion()) << "there is no dense stage";
}

TEST(Calibration, OfAnotherBucketThatMakesNoSenseIsUnknown) {
  LayerControl layer = control();
  layer.restore({static_cast<double>(NAN), 1.5, 1.0});
  EXPECT_EQ(layer.state().alpha, 1.7);
  EXPECT_EQ(layer.state().dispersion, 0);
  EXPECT_EQ(layer.state().aimed, 0);
}

struct Stage {
  double sent = 0;  // of what it aims at
  double soon = 0;  // the same of its second to fifth operation
};

// A warm start of 20 operations a stage: what its stages of 25%, 6.25% and 1.56%, and the target, send.
std::vector<Stage> stages(const CodecSettings& codec_settings, uint32_t nodes, bool heavy) {
  constexpr uint32_t kSteps = 20;
  CodecSettings settings = codec_settings;
  settings.warm_start_steps = kSteps;
  const BucketShape shape = shape_of({uint64_t{32768} * nodes}, nodes);
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<Stage> result(5);
  const std::vector<double> aimed = {1, 0.25, 0.0625, 0.015625, 0.01};
  for (uint32_t step = 0; step < 5 * kSteps; ++step) {
    // The product of two Gaussian values has a kappa of 0.64: heavier tails than a Laplacian's.
    buffers.fill([&] { return normal(random) * (heavy ? normal(random) : 1); });
    EXPECT_TRUE(run_sum(ring, buffers));
    for (size_t n = 0; n < ring.size(); ++n) {
      const double share = ring.node(n).stats().density / aimed[step / kSteps] / nodes;
      result[step / kSteps].sent += share / kSteps;
      result[step / kSteps].soon += step % kSteps >= 1 && step % kSteps < 5 ? share / 4 : 0;
    }
  }
  return result;
}

TEST(Calibration, MeetsTheFirstSparseStageAtOnceAndTheLaterOnesInTheMean) {
  for (const bool heavy : {false, true}) {
    for (const uint32_t nodes : {1U, 4U}) {
      SCOPED_TRACE(std::to_string(nodes) + (heavy ? " nodes, heavy tails" : " nodes"));
      const std::vector<Stage> seen = stages(codec("laco", 0.01), nodes, heavy);
      EXPECT_NEAR(seen[0].sent, 1, 1e-9);
      EXPECT_NEAR(seen[1].soon, 1, 0.25);
      EXPECT_NEAR(seen[1].sent, 1, 0.12);
      for (size_t stage = 2; stage < seen.size(); ++stage) {
        EXPECT_NEAR(seen[stage].sent, 1, 0.2) << "stage " << stage;
        EXPECT_LT(seen[stage].soon, 1.8) << "stage " << stage;
      }
    }
  }
}

TEST(Calibration, FollowsAnExponentialWarmStart) {
  CodecSettings settings = codec("laco", 0.01, 100);
  settings.warm_start = WarmStart::kExponential;
  const BucketShape shape = shape_of({65536}, 2);
  LoopbackRing ring = compressed_ring(shape, settings);
  const LayerControl control(settings, 0.01);
  RingBuffers buffers(shape, 1);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  double sent = 0;
  double aimed = 0;
  for (uint64_t step = 0; step < 100; ++step) {
    buffers.fill([&] { return normal(random); });
    ASSERT_TRUE(run_sum(ring, buffers));
    if (step >= 20) {
      sent += ring.node(0).stats().density / 2 + ring.node(1).stats().density / 2;
      aimed += control.density(step);
    }
  }
  EXPECT_NEAR(sent / aimed, 1, 0.1);
}

TEST(Calibration, MeetsTheStagesWithTheNormOfTheGradientToo) {
  CodecSettings settings = codec("laco", 0.01);
  settings.norm_of = NormOf::kGradient;
  const std::vector<Stage> seen = stages(settings, 4, false);
  EXPECT_NEAR(seen[1].soon, 1, 0.25);
  for (size_t stage = 1; stage < seen.size(); ++stage) {
    EXPECT_NEAR(seen[stage].sent, 1, 0.15) << "stage " << stage;
  }
}

}  // namespace
}  // namespace gradwire::compress
