#include "daemon/planner/costs.h"

#include <gtest/gtest.h>

#include <limits>

#include "daemon/planner/planner.h"
#include "tests/planner/ring_model.h"

namespace gradwire::planner {
namespace {

CodecCost exact() {
  return {{100, 0.35}, {100, 0.6}, {50, 0.25}, 4, 4};
}

ProbeTimes probe_of(const NodeCosts& costs, uint32_t nodes, uint64_t elements) {
  ProbeTimes probe;
  probe.elements = elements;
  const Choice choice{Algorithm::kRing, {}, 130'048};
  NodeCosts free = costs;  // nothing is coded
  free.exact = {};
  probe.empty_ns = estimate({nodes, {}}, free, choice).total_ns;
  probe.empty_cpu_ns = estimate({nodes, {}}, free, choice).cpu_ns;
  const Workload bucket{nodes, {{std::nullopt, elements}}};
  probe.full_ns = estimate(bucket, costs, choice).total_ns;
  probe.full_cpu_ns = estimate(bucket, costs, choice).cpu_ns;
  return probe;
}

TEST(Line, GoesThroughBothAndIsNowhereNegative) {
  const Line line = line_through(1000, 20'800, 1e6, 820'000);
  EXPECT_NEAR(line.fixed_ns, 20'000, 1);
  EXPECT_NEAR(line.at(5e5), 420'000, 1);
  const Line falling = line_through(1000, 900, 1e6, 100);
  EXPECT_EQ(falling.unit_ns, 0);
  EXPECT_EQ(falling.fixed_ns, 500);
  const Line steep = line_through(1e6, 1, 2e6, 2e6);
  EXPECT_EQ(steep.fixed_ns, 0);
  EXPECT_EQ(steep.unit_ns, 1);
}

TEST(FitLink, FindsTheLinkThatGaveTheTimes) {
  for (const uint32_t nodes : {2u, 4u, 16u}) {
    NodeCosts costs;
    costs.exact = exact();
    costs.link = {20'000, 4'000, 0.2, 8};
    const LinkCost link = fit_link(probe_of(costs, nodes, 1 << 19), nodes, 130'048, exact());
    EXPECT_NEAR(link.latency_ns, 20'000, 5);
    EXPECT_NEAR(link.message_cpu_ns, 4'000, 5);
    EXPECT_NEAR(link.byte_cpu_ns, 0.2, 0.01);
    EXPECT_NEAR(link.byte_wire_ns, 8, 0.05);
  }
}

TEST(FitLink, PredictsAnOperationOfAnotherSizeWhereTheProcessorIsTheLimit) {
  NodeCosts costs;
  costs.exact = exact();
  costs.link = {5'000, 4'000, 0.5, 0.01};
  NodeCosts fitted = costs;
  fitted.link = fit_link(probe_of(costs, 4, 1 << 19), 4, 130'048, exact());
  const Workload large{4, {{std::nullopt, 1 << 24}}};
  const Choice choice{Algorithm::kRing, {}, 130'048};
  EXPECT_NEAR(estimate(large, fitted, choice).total_ns / estimate(large, costs, choice).total_ns, 1, 0.05);
}

TEST(FitLink, MakesDoWithoutProcessorTimes) {
  ProbeTimes probe;
  probe.elements = 1 << 18;
  probe.empty_ns = 60'000;
  probe.full_ns = 20e6;
  const LinkCost link = fit_link(probe, 2, 130'048, exact());
  EXPECT_GT(link.byte_wire_ns, 0);
  EXPECT_GT(link.latency_ns, 0);
  EXPECT_TRUE(check_costs({link, exact(), {}}).ok());
}

TEST(FitLink, GivesSensibleFiguresForTimesThatMakeNone) {
  ProbeTimes probe;
  probe.elements = 1 << 18;
  probe.empty_ns = 1e9;
  probe.empty_cpu_ns = 3e9;
  probe.full_ns = 1;
  probe.full_cpu_ns = 5e9;
  EXPECT_TRUE(check_costs({fit_link(probe, 2, 130'048, exact()), exact(), {}}).ok());
}

TEST(Costs, TheSlowestNodeCountsInEveryFigure) {
  NodeCosts a{{1, 2, 3, 4}, exact(), {exact()}};
  NodeCosts b{{4, 3, 2, 1}, exact(), {exact()}};
  b.codecs[0].relay.unit_ns = 9;
  a.codecs[0].decode.unit_ns = 8;
  const NodeCosts both[] = {a, b};
  const NodeCosts all = slowest(both);
  EXPECT_EQ(all.link.latency_ns, 4);
  EXPECT_EQ(all.link.message_cpu_ns, 3);
  EXPECT_EQ(all.link.byte_cpu_ns, 3);
  EXPECT_EQ(all.link.byte_wire_ns, 4);
  EXPECT_EQ(all.codecs[0].relay.unit_ns, 9);
  EXPECT_EQ(all.codecs[0].decode.unit_ns, 8);
}

TEST(Costs, FiguresThatCannotBeTrueAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {nan, -1.0, 1e12}) {
    NodeCosts costs{{1, 2, 3, 4}, exact(), {exact()}};
    costs.link.byte_wire_ns = bad;
    EXPECT_EQ(check_costs(costs).code(), Code::kCorrupt);
    costs.link.byte_wire_ns = 1;
    ASSERT_TRUE(check_costs(costs).ok());
    costs.codecs[0].bytes_per_element = bad;
    EXPECT_EQ(check_costs(costs).code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace gradwire::planner
