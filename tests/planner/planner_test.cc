#include "daemon/planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/planner/ring_model.h"

namespace gradwire::planner {
namespace {

constexpr uint32_t kSegment = 130'048;

CodecCost codec(double code_ns, double decode_ns, double bytes, double most) {
  return {{100, code_ns}, {100, code_ns + decode_ns}, {50, decode_ns}, bytes, most};
}

// Figures of the kind that a server's processor gives.
NodeCosts costs_at(double gbit) {
  NodeCosts costs;
  costs.link = {15'000, 3'000, 0.25, 8 / gbit};
  costs.exact = codec(0.35, 0.25, 4, 4);
  costs.codecs = {codec(0.9, 0.15, 0.0126, 1), codec(0.5, 0.15, 1, 1), codec(0.9, 0.7, 2, 2),
                  codec(6, 0.6, 0.126, 0.126)};
  return costs;
}

Workload bucket_of(uint32_t nodes, uint64_t bytes, uint32_t codec = 0) {
  return {nodes, {{codec, bytes / 4}}};
}

Allowed everything() {
  Allowed allowed;
  allowed.algorithms = {Algorithm::kRing, Algorithm::kDirect};
  allowed.codecs = {
      {}, {CodecChoice::Kind::kBypass, 0}, {CodecChoice::Kind::kOther, 1}, {CodecChoice::Kind::kOther, 2}};
  allowed.segments = segment_sizes(4 * kSegment);
  return allowed;
}

TEST(Planner, CompressesAtOneGigabit) {
  Allowed allowed;
  allowed.codecs = {{}, {CodecChoice::Kind::kBypass, 0}};
  allowed.segments = {kSegment};
  const Decision decision = choose(bucket_of(4, 25 << 20), costs_at(1), allowed);
  EXPECT_EQ(decision.choice.codec.kind, CodecChoice::Kind::kPolicy);
  EXPECT_LT(decision.expected.total_ns * 5, decision.exact_ns);
}

TEST(Planner, DoesNotCompressWhereTheLinkIsFasterThanTheCodec) {
  NodeCosts costs = costs_at(400);
  costs.link.byte_cpu_ns = 0.02;
  Allowed allowed;
  allowed.codecs = {{CodecChoice::Kind::kOther, 3}, {CodecChoice::Kind::kBypass, 0}};
  allowed.segments = {kSegment};
  const Decision decision = choose(bucket_of(2, 25 << 20), costs, allowed);
  EXPECT_EQ(decision.choice.codec.kind, CodecChoice::Kind::kBypass);
  EXPECT_EQ(decision.expected.total_ns, decision.exact_ns);
}

TEST(Planner, GoesDirectWhereLatencyIsWhatCosts) {
  Allowed allowed;
  allowed.algorithms = {Algorithm::kRing, Algorithm::kDirect};
  allowed.segments = {kSegment};
  EXPECT_EQ(choose(bucket_of(16, 4096), costs_at(10), allowed).choice.algorithm, Algorithm::kDirect);
  // Where it does not matter the first of the list stays.
  EXPECT_EQ(choose(bucket_of(4, 256 << 20), costs_at(1), allowed).choice.algorithm, Algorithm::kRing);
}

TEST(Planner, TakesOnlyWhatIsAllowed) {
  Allowed allowed;
  allowed.algorithms = {Algorithm::kDirect};
  allowed.codecs = {{CodecChoice::Kind::kOther, 2}};
  allowed.segments = {70'000};
  const Decision decision = choose(bucket_of(8, 25 << 20), costs_at(1), allowed);
  EXPECT_EQ(decision.choice, (Choice{Algorithm::kDirect, {CodecChoice::Kind::kOther, 2}, 70'000}));
}

TEST(Planner, PlansTheSameWhateverTheOrderOfTheNodes) {
  NodeCosts slow = costs_at(1);
  slow.codecs[0].relay.unit_ns = 40;
  const NodeCosts one[] = {costs_at(10), slow, costs_at(100)};
  const NodeCosts other[] = {costs_at(100), costs_at(10), slow};
  const Decision first = choose(bucket_of(3, 4 << 20), slowest(one), everything());
  const Decision second = choose(bucket_of(3, 4 << 20), slowest(other), everything());
  EXPECT_EQ(first.choice, second.choice);
  EXPECT_EQ(first.expected.total_ns, second.expected.total_ns);
}

TEST(Planner, ExactLayersStayExactUnderEveryCodec) {
  const NodeCosts costs = costs_at(1);
  const Workload exact{4, {{std::nullopt, 1 << 20}}};
  const double policy = estimate(exact, costs, {Algorithm::kRing, {}, kSegment}).total_ns;
  const double other =
      estimate(exact, costs, {Algorithm::kRing, {CodecChoice::Kind::kOther, 1}, kSegment}).total_ns;
  EXPECT_EQ(policy, other);
}

TEST(Planner, HandlesABucketOfNothing) {
  Allowed allowed = everything();
  const Decision decision = choose({4, {}}, costs_at(1), allowed);
  EXPECT_GT(decision.expected.total_ns, 0);
  EXPECT_TRUE(std::isfinite(decision.exact_ns));
}

TEST(Planner, HalvesSegmentsDownToTheSmallest) {
  EXPECT_EQ(segment_sizes(130'048), (std::vector<uint32_t>{130'048}));
  EXPECT_EQ(segment_sizes(400'000), (std::vector<uint32_t>{400'000, 200'000, 100'000}));
}

std::string describe(const Choice& choice) {
  return std::string(choice.algorithm == Algorithm::kRing ? "ring" : "direct") + ", codec " +
         std::to_string(static_cast<int>(choice.codec.kind)) + "/" + std::to_string(choice.codec.other) +
         ", " + std::to_string(choice.segment_bytes);
}

struct Grid {
  double worst = 0;
  std::string where;
};

Grid compare(const Allowed& allowed, double byte_cpu_ns) {
  Grid grid;
  for (const uint32_t nodes : {2u, 3u, 4u, 6u, 8u, 12u, 16u}) {
    for (const double gbit : {0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 100.0}) {
      NodeCosts costs = costs_at(gbit);
      costs.link.byte_cpu_ns = byte_cpu_ns;
      for (uint64_t bytes = 1024; bytes <= uint64_t{256} << 20; bytes *= 2) {
        const Workload bucket = bucket_of(nodes, bytes);
        const Choice chosen = choose(bucket, costs, allowed).choice;
        const double planned = RingModel(bucket, costs, chosen).run();
        double best = std::numeric_limits<double>::infinity();
        std::string name;
        for (const Algorithm algorithm : allowed.algorithms) {
          for (const CodecChoice& choice : allowed.codecs) {
            for (const uint32_t segment : allowed.segments) {
              const double time = RingModel(bucket, costs, {algorithm, choice, segment}).run();
              if (time < best) {
                best = time;
                name = describe({algorithm, choice, segment});
              }
            }
          }
        }
        if (planned / best > grid.worst) {
          grid.worst = planned / best;
          grid.where = std::to_string(nodes) + " nodes, " + std::to_string(gbit) + " gbit, " +
                       std::to_string(bytes) + " bytes: " + describe(chosen) + " took " +
                       std::to_string(planned) + ", the best is " + name + " with " + std::to_string(best);
        }
      }
    }
  }
  return grid;
}

// What a choice takes by the formulas, against the model.
TEST(Planner, EstimatesAreNearWhatTheModelTakes) {
  double worst = 0;
  for (const uint32_t nodes : {2u, 4u, 8u, 16u}) {
    for (const double gbit : {0.1, 1.0, 10.0, 100.0}) {
      const NodeCosts costs = costs_at(gbit);
      for (uint64_t bytes = 1024; bytes <= uint64_t{64} << 20; bytes *= 4) {
        for (const CodecChoice& codec : everything().codecs) {
          for (const Algorithm algorithm : everything().algorithms) {
            const Workload bucket = bucket_of(nodes, bytes);
            const Choice choice{algorithm, codec, kSegment};
            const double ratio =
                estimate(bucket, costs, choice).total_ns / RingModel(bucket, costs, choice).run();
            worst = std::max(worst, std::max(ratio, 1 / ratio));
          }
        }
      }
    }
  }
  EXPECT_LE(worst, 1.16);
}

constexpr double kByteCpu[] = {0.0, 0.05, 0.25, 1.0};

TEST(Planner, IsNeverMoreThanATenthSlowerThanTheBestPinnedChoice) {
  Allowed allowed;
  allowed.algorithms = {Algorithm::kRing, Algorithm::kDirect};
  allowed.codecs = {{}, {CodecChoice::Kind::kBypass, 0}};
  allowed.segments = segment_sizes(kSegment);
  for (const double byte_cpu_ns : kByteCpu) {
    const Grid sparse = compare(allowed, byte_cpu_ns);
    EXPECT_LE(sparse.worst, 1.10) << byte_cpu_ns << " ns a byte; " << sparse.where;
    const Grid all = compare(everything(), byte_cpu_ns);
    EXPECT_LE(all.worst, 1.10) << byte_cpu_ns << " ns a byte, everything allowed; " << all.where;
  }
}

// Where a dense codec competes with none, and ring with direct, all four are close at a time, and the
// formulas are not exact to a tenth.
TEST(Planner, IsNeverMoreThanASeventhSlowerWithAnyCodec) {
  Allowed allowed;
  allowed.algorithms = {Algorithm::kRing, Algorithm::kDirect};
  allowed.segments = segment_sizes(kSegment);
  for (const double byte_cpu_ns : kByteCpu) {
    for (const uint32_t codec : {1u, 2u, 3u}) {
      allowed.codecs = {{CodecChoice::Kind::kOther, codec}, {CodecChoice::Kind::kBypass, 0}};
      const Grid grid = compare(allowed, byte_cpu_ns);
      EXPECT_LE(grid.worst, 1.14) << byte_cpu_ns << " ns a byte, codec " << codec << "; " << grid.where;
    }
  }
}

}  // namespace
}  // namespace gradwire::planner
