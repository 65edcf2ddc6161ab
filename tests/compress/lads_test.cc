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

TEST(Lads, ACapIsAtLeastOneElementAndAtMostTheBlock) {
  EXPECT_EQ(control(0.01, 0).cap(65536, 0.01), 2622U);
  EXPECT_EQ(control(0.01, 0).cap(1, 0.01), 1U);
  EXPECT_EQ(control(0.01, 0).cap(10, 0.01), 1U);
  EXPECT_EQ(control(0.5, 0).cap(100, 0.5), 100U);
}

}  // namespace
}  // namespace gradwire::compress
