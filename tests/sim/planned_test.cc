// The planner's expectation held against the engine on a network in virtual time, where the processor costs
// nothing: the network is measured by the engine's own operations, as in a daemon.
#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/planner/planner.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

struct Network {
  uint32_t nodes = 2;
  uint64_t latency_ns = 20'000;
  uint64_t bytes_per_second = 125'000'000;
};

ClusterOptions options_of(const Network& network) {
  ClusterOptions options;
  options.nodes = network.nodes;
  options.network.max_payload = 130'048;
  options.network.latency_ns = network.latency_ns;
  options.network.bytes_per_second = network.bytes_per_second;
  return options;
}

planner::NodeCosts measure(const Network& network) {
  Cluster cluster(options_of(network));
  planner::NodeCosts costs;
  costs.exact = {{}, {}, {}, 4, 4};
  costs.codecs = {{{}, {}, {}, 1.0002, 1.0002}};                  // l8
  planner::ProbeTimes times{engine::kProbeElements, 0, 1, 0, 1};  // next to no processor time
  for (const engine::ProbeTimes& seen : probe(cluster)) {
    times.empty_ns = std::max(times.empty_ns, static_cast<double>(seen.empty_ns));
    times.full_ns = std::max(times.full_ns, static_cast<double>(seen.full_ns));
  }
  costs.link = planner::fit_link(times, network.nodes, 130'048, costs.exact);
  return costs;
}

double run(const Network& network, engine::Algorithm algorithm, uint64_t elements, const std::string& codec) {
  Cluster cluster(options_of(network));
  BucketShape shape = bucket_of(elements, codec.c_str());
  shape.algorithm = algorithm;
  cluster.add_bucket(1, shape);
  uint64_t last = 0;
  for (int i = 0; i < 2; ++i) {
    cluster.submit_all(1);
    EXPECT_TRUE(cluster.finish(1));
    cluster.settle();
  }
  for (uint32_t n = 0; n < network.nodes; ++n) {
    last = std::max(last, cluster.node(n).engine->snapshot(Cluster::kJob).buckets[1].last_ns);
  }
  return static_cast<double>(last);
}

void expect_as_planned(const Network& network, planner::Algorithm planned, engine::Algorithm algorithm,
                       std::initializer_list<uint64_t> sizes) {
  const planner::NodeCosts costs = measure(network);
  for (const uint64_t elements : sizes) {
    for (const bool coded : {false, true}) {
      const planner::Workload bucket{network.nodes, {{0u, elements}}};
      const planner::CodecChoice choice{
          coded ? planner::CodecChoice::Kind::kPolicy : planner::CodecChoice::Kind::kBypass, 0};
      const double expected = planner::estimate(bucket, costs, {planned, choice, 130'048}).total_ns;
      const double seen = run(network, algorithm, elements, coded ? "l8" : "none");
      EXPECT_NEAR(expected / seen, 1, 0.15)
          << network.nodes << " nodes, " << network.bytes_per_second << " bytes/s, " << elements
          << " elements, " << (coded ? "l8" : "none") << ": " << expected << " expected, " << seen << " seen";
    }
  }
}

TEST(Planned, TheEngineTakesAroundARingWhatThePlannerExpects) {
  for (const uint32_t nodes : {2u, 4u, 8u}) {
    for (const uint64_t rate : {uint64_t{12'500'000}, uint64_t{125'000'000}, uint64_t{1'250'000'000}}) {
      expect_as_planned({nodes, 20'000, rate}, planner::Algorithm::kRing, engine::Algorithm::kRing,
                        {1024, 65'536, 1'000'000, 4'000'000});
    }
  }
}

// Where latency decides: this network gives every pair of nodes the whole rate, which the planner lets them
// share.
TEST(Planned, TheEngineTakesStraightToTheOwnersWhatThePlannerExpects) {
  for (const uint32_t nodes : {4u, 8u}) {
    expect_as_planned({nodes, 1'000'000, 1'250'000'000}, planner::Algorithm::kDirect,
                      engine::Algorithm::kDirect, {1024, 16'384});
  }
}

}  // namespace
}  // namespace gradwire::sim
