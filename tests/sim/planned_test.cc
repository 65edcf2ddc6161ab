// The planner's expectation held against the engine on a network in virtual time, where the processor costs
// nothing: the network is measured by the engine's own operations, as in a daemon.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

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
  std::vector<std::optional<engine::ProbeTimes>> answers(network.nodes);
  for (uint32_t n = 0; n < network.nodes; ++n) {
    EXPECT_TRUE(
        cluster.node(n)
            .engine
            ->probe(Cluster::kJob, [&answers, n](const engine::ProbeTimes& times) { answers[n] = times; })
            .ok());
  }
  EXPECT_TRUE(cluster.run_until([&answers] {
    return std::all_of(answers.begin(), answers.end(), [](const auto& each) { return each.has_value(); });
  }));
  planner::NodeCosts costs;
  costs.exact = {{}, {}, {}, 4, 4};
  costs.codecs = {{{}, {}, {}, 1.0002, 1.0002}};                  // l8
  planner::ProbeTimes times{engine::kProbeElements, 0, 1, 0, 1};  // next to no processor time
  for (const auto& answer : answers) {
    times.empty_ns = std::max(times.empty_ns, static_cast<double>(answer->empty_ns));
    times.full_ns = std::max(times.full_ns, static_cast<double>(answer->full_ns));
  }
  costs.link = planner::fit_link(times, network.nodes, 130'048, costs.exact);
  return costs;
}

double run(const Network& network, uint64_t elements, const std::string& codec) {
  Cluster cluster(options_of(network));
  BucketShape shape = bucket_of(elements, codec.c_str());
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

TEST(Planned, TheEngineTakesWhatThePlannerExpects) {
  for (const uint32_t nodes : {2u, 4u, 8u}) {
    for (const uint64_t rate : {uint64_t{12'500'000}, uint64_t{125'000'000}, uint64_t{1'250'000'000}}) {
      const Network network{nodes, 20'000, rate};
      const planner::NodeCosts costs = measure(network);
      for (const uint64_t elements :
           {uint64_t{1024}, uint64_t{65'536}, uint64_t{1'000'000}, uint64_t{4'000'000}}) {
        for (const bool coded : {false, true}) {
          const planner::Workload bucket{nodes, {{0u, elements}}};
          const planner::CodecChoice choice{
              coded ? planner::CodecChoice::Kind::kPolicy : planner::CodecChoice::Kind::kBypass, 0};
          const double expected =
              planner::estimate(bucket, costs, {planner::Algorithm::kRing, choice, 130'048}).total_ns;
          const double seen = run(network, elements, coded ? "l8" : "none");
          EXPECT_NEAR(expected / seen, 1, 0.15)
              << nodes << " nodes, " << rate << " bytes/s, " << elements << " elements, "
              << (coded ? "l8" : "none") << ": " << expected << " expected, " << seen << " seen";
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::sim
