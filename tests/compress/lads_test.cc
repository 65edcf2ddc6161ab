#include "compress/lads.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gradwire::compress {
namespace {

LayerControl control(double target, uint32_t steps, double cap = 4.0) {
  CodecSettings settings;
  settings.warm_start_steps = steps;
  settings.density_cap = cap;
  return {settings, target};
}

TEST(Lads, LogarithmAndExponentialAgreeWithTheLibrary) {
  for (double ratio = 0.3; ratio < 3.2; ratio += 0.001) {
    EXPECT_NEAR(clipped_log(ratio), std::min(1.0, std::max(-1.0, std::log(ratio))), 1e-14);
  }
  EXPECT_EQ(clipped_log(0), -1);
  EXPECT_EQ(clipped_log(1e300), 1);
  EXPECT_EQ(clipped_log(1), 0);
  for (double x = -0.1; x <= 0.1; x += 0.001) {
    EXPECT_NEAR(exponential_near_zero(x), std::exp(x), 1e-15);
  }
}

TEST(Lads, AlphaStartsAt1Point7AndMovesByAtMostFivePerCent) {
  LayerControl layer = control(0.01, 0);
  EXPECT_EQ(layer.state().alpha, 1.7);
  layer.adjust(1.0, 0.01);
  EXPECT_NEAR(layer.state().alpha, 1.7 * std::exp(0.05), 1e-14);
  layer.adjust(0.0, 0.01);
  EXPECT_NEAR(layer.state().alpha, 1.7, 1e-14);
  layer.adjust(0.02, 0.01);
  EXPECT_NEAR(layer.state().alpha, 1.7 * std::exp(0.05 * std::log(2.0)), 1e-14);
}

TEST(Lads, StagesStopAtTheTarget) {
  const LayerControl fine = control(0.0005, 10);
  const double densities[] = {1, 0.25, 0.0625, 0.015625, 0.004, 0.001, 0.0005, 0.0005};
  for (uint64_t stage = 0; stage < 8; ++stage) {
    EXPECT_EQ(fine.density(stage * 10), densities[stage]);
    EXPECT_EQ(fine.density(stage * 10 + 9), densities[stage]);
    EXPECT_EQ(fine.stage(stage * 10), stage < 6 ? stage : 255U);
  }
  const LayerControl coarse = control(0.25, 10);
  EXPECT_EQ(coarse.stage(9), 0U);
  EXPECT_EQ(coarse.stage(10), 255U);
  EXPECT_EQ(coarse.density(10), 0.25);
  EXPECT_EQ(control(0.01, 0).stage(0), 255U);
}

TEST(Lads, AnExponentialWarmStartComesDownByTheSameFactorInEveryOperation) {
  CodecSettings settings;
  settings.warm_start = WarmStart::kExponential;
  settings.warm_start_steps = 50;
  const LayerControl layer(settings, 0.01);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(layer.density(i), 1);
    EXPECT_EQ(layer.stage(i), 0U);
  }
  EXPECT_EQ(layer.density(10), 0.25);
  for (uint64_t i = 10; i < 50; ++i) {
    EXPECT_EQ(layer.stage(i), 1U);
    EXPECT_NEAR(layer.density(i), 0.25 * std::pow(0.04, static_cast<double>(i - 10) / 40), 1e-12);
  }
  for (const uint64_t after : {uint64_t{50}, uint64_t{51}, uint64_t{1} << 48}) {
    EXPECT_EQ(layer.density(after), 0.01);
    EXPECT_EQ(layer.stage(after), 255U);
  }
}

TEST(Lads, AnExponentialWarmStartStopsAtTheTarget) {
  CodecSettings settings;
  settings.warm_start = WarmStart::kExponential;
  for (const uint32_t steps : {1U, 2U, 5U, 1000000000U}) {
    settings.warm_start_steps = steps;
    for (const double target : {1e-6, 0.2499, 0.25, 0.7, 1.0}) {
      const LayerControl layer(settings, target);
      double before = 1;
      for (const uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{4}, uint64_t{999999999}}) {
        const double density = layer.density(at);
        EXPECT_LE(density, before);
        EXPECT_GE(density, target);
        before = density;
      }
      EXPECT_EQ(layer.density(steps), target);
      EXPECT_EQ(layer.density(0), 1) << "dense first";
    }
  }
  settings.warm_start_steps = 0;
  EXPECT_EQ(LayerControl(settings, 0.01).density(0), 0.01);
}

// A state of before there was calibration comes into a dense stage.
TEST(Lads, AnAlphaOfUnknownDispersionGivesWayToACalibratedOne) {
  LayerControl layer = control(0.01, 10);
  layer.restore({2.0, 0, 0.25});
  EXPECT_EQ(layer.alpha_for(0.0625), 2.0);
  layer.observe(0.75);
  EXPECT_GT(layer.alpha_for(0.0625), 1.0);
  EXPECT_LT(layer.alpha_for(0.0625), 2.5);
}

TEST(Lads, ACapIsAtLeastOneElementAndAtMostTheBlock) {
  EXPECT_EQ(control(0.01, 0).cap(65536, 0.01), 2622U);
  EXPECT_EQ(control(0.01, 0).cap(1, 0.01), 1U);
  EXPECT_EQ(control(0.01, 0).cap(10, 0.01), 1U);
  EXPECT_EQ(control(0.5, 0).cap(100, 0.5), 100U);
}

}  // namespace
}  // namespace gradwire::compress
