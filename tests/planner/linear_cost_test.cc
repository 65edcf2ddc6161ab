#include "daemon/planner/linear_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradwire::planner {
namespace {

TEST(LinearCost, FindsTheLineBehindExactMeasurements) {
  LinearCost cost;
  for (const double bytes : {0.0, 1e3, 1e6, 5e6}) {
    ASSERT_TRUE(cost.add(bytes, 20'000 + 0.8 * bytes));
  }
  ASSERT_TRUE(cost.line());
  EXPECT_NEAR(cost.line()->fixed_ns, 20'000, 1);
  EXPECT_NEAR(cost.line()->unit_ns, 0.8, 1e-6);
  EXPECT_NEAR(cost.line()->at(1e6), 820'000, 1);
}

TEST(LinearCost, KnowsNothingFromOneSize) {
  LinearCost cost;
  EXPECT_FALSE(cost.line());
  cost.add(1e6, 100);
  cost.add(1e6, 300);
  EXPECT_FALSE(cost.line());
}

TEST(LinearCost, ForgetsALinkThatWasFaster) {
  LinearCost cost(0.8);
  for (int i = 0; i < 50; ++i) {
    cost.add(0, 1000);
    cost.add(1e6, 1000 + 1e5);
  }
  for (int i = 0; i < 20; ++i) {
    cost.add(0, 1000);
    cost.add(1e6, 1000 + 8e6);
  }
  EXPECT_NEAR(cost.line()->unit_ns, 8, 0.1);
}

TEST(LinearCost, HasNoNegativeParts) {
  LinearCost falling;
  falling.add(0, 1000);
  falling.add(1e6, 10);
  EXPECT_EQ(falling.line()->unit_ns, 0);
  EXPECT_GT(falling.line()->fixed_ns, 0);
  LinearCost steep;
  steep.add(1e6, 1);
  steep.add(2e6, 2e6);
  EXPECT_EQ(steep.line()->fixed_ns, 0);
  EXPECT_GT(steep.line()->unit_ns, 0);
}

TEST(LinearCost, RefusesNonsense) {
  LinearCost cost;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, infinite, -1.0, 1e300}) {
    EXPECT_FALSE(cost.add(bad, 1));
    EXPECT_FALSE(cost.add(1, bad));
  }
  cost.add(0, 10);
  cost.add(100, 20);
  EXPECT_NEAR(cost.line()->unit_ns, 0.1, 1e-9);
}

}  // namespace
}  // namespace gradwire::planner
