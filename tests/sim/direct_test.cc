// Operations whose shares go straight to the owners of their chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "client/include/gradwire/gradwire.h"
#include "daemon/engine/message.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using layout::BucketPhase;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;

BucketShape direct_bucket(uint64_t elements, const char* codec = "none") {
  BucketShape shape = bucket_of(elements, codec);
  shape.algorithm = engine::Algorithm::kDirect;
  shape.settings.warm_start_steps = 1;
  return shape;
}

ClusterOptions hurried(uint64_t seed, uint32_t nodes) {
  ClusterOptions options = cluster_of(nodes, 1);
  options.network.seed = seed;
  options.network.jitter_ns = seed % 3 == 0 ? 0 : 300'000;
  options.network.bytes_per_second = seed % 2 == 0 ? 0 : 1'000'000'000;
  options.network.send_window = 1 + seed % 2;
  return options;
}

// Small integers, so that sums are exact in any order.
void fill_direct(Cluster& cluster, uint32_t bucket, uint32_t step) {
  for (uint32_t r = 0; r < cluster.world(); ++r) {
    auto values = cluster.rank(r).gradients[bucket]->as<float>();
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] = static_cast<float>((k * 31 + bucket * 7 + step * 3) % 1000 + r);
    }
  }
}

void expect_direct_sums(Cluster& cluster, uint32_t bucket, uint32_t step) {
  const uint32_t world = cluster.world();
  for (uint32_t n = 0; n < cluster.nodes(); ++n) {
    const auto values = cluster.node(n).results[bucket]->as<float>();
    for (size_t k = 0; k < values.size(); ++k) {
      const size_t expected = (k * 31 + bucket * 7 + step * 3) % 1000 * world + world * (world - 1) / 2;
      ASSERT_EQ(values[k], static_cast<float>(expected)) << "node " << n << ", element " << k;
    }
  }
}

TEST(Direct, TakesTwoMessagesWhereARingTakesManyHops) {
  constexpr uint64_t kLatency = 1'000'000;
  const auto time_of = [](engine::Algorithm algorithm) {
    ClusterOptions options = cluster_of(8, 1);
    options.network.latency_ns = kLatency;
    options.network.jitter_ns = 0;
    Cluster cluster(options);
    BucketShape shape = direct_bucket(800);
    shape.algorithm = algorithm;
    cluster.add_bucket(1, shape);
    fill_direct(cluster, 1, 1);
    cluster.submit_all(1);
    EXPECT_TRUE(cluster.finish(1));
    expect_direct_sums(cluster, 1, 1);
    return cluster.now_ns();
  };
  EXPECT_LT(time_of(engine::Algorithm::kDirect), 3 * kLatency);
  EXPECT_GT(time_of(engine::Algorithm::kRing), 13 * kLatency);
}

TEST(Direct, SendsAsManyBytesAsARing) {
  uint64_t sent[2] = {};
  for (const bool direct : {false, true}) {
    Cluster cluster(cluster_of(5, 1));
    BucketShape shape = direct_bucket(100'000);
    shape.algorithm = direct ? engine::Algorithm::kDirect : engine::Algorithm::kRing;
    cluster.add_bucket(1, shape);
    cluster.submit_all(1);
    ASSERT_TRUE(cluster.finish(1));
    sent[direct ? 1 : 0] = cluster.node(2).engine->traffic(Cluster::kJob).payload_bytes;
  }
  EXPECT_NEAR(static_cast<double>(sent[1]), static_cast<double>(sent[0]),
              0.01 * static_cast<double>(sent[0]));
}

// Every rank goes on as soon as its own operation has completed, through all kinds of operations, so that
// some nodes are several operations ahead of others.
TEST(Direct, OperationsOfAllKindsFollowEachOtherWithoutWaiting) {
  constexpr uint8_t kKinds[] = {layout::kOpAllreduce,     layout::kOpBroadcast, layout::kOpBroadcast,
                                layout::kOpBroadcast,     layout::kOpAllreduce, layout::kOpAllgather,
                                layout::kOpReduceScatter, layout::kOpAllreduce, layout::kOpAllreduce,
                                layout::kOpBroadcast,     layout::kOpAllreduce};
  constexpr uint32_t kSteps = 2 * std::size(kKinds);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const uint32_t nodes = 3 + static_cast<uint32_t>(seed % 4);
    Cluster cluster(hurried(seed, nodes));
    std::mt19937_64 random(seed);
    const uint64_t sizes[] = {nodes * 10, nodes * 6'000, nodes * 30'000};
    for (uint32_t bucket = 1; bucket <= 3; ++bucket) {
      cluster.add_bucket(bucket, direct_bucket(sizes[bucket - 1]));
      fill_direct(cluster, bucket, 5);
    }
    std::vector<uint32_t> steps(4 * nodes, 0);
    const auto done = [&] {
      bool all = true;
      for (uint32_t r = 0; r < nodes; ++r) {
        for (uint32_t bucket = 1; bucket <= 3; ++bucket) {
          uint32_t& step = steps[4 * r + bucket];
          const bool idle = step == 0 || cluster.rank(r).completion(bucket) != nullptr;
          if (idle && step < kSteps && random() % 4 != 0) {
            Request request;
            request.operation = kKinds[step % std::size(kKinds)];
            request.root = request.operation == layout::kOpBroadcast ? (bucket + step) % nodes : 0;
            ++step;
            cluster.submit(r, bucket, request);
          }
          all = all && idle && step == kSteps;
        }
      }
      return all;
    };
    bool finished = false;
    for (int round = 0; round < 20'000 && !finished; ++round) {
      finished = cluster.run_until(done, 20'000);
    }
    ASSERT_TRUE(finished && cluster.failure().ok()) << "seed " << seed << ": " << cluster.failure().message();
    for (uint32_t bucket = 1; bucket <= 3; ++bucket) {
      expect_direct_sums(cluster, bucket, 5);
    }
  }
}

TEST(Direct, ANotFiniteGradientGivesNanToAll) {
  for (uint32_t culprit = 0; culprit < 4; ++culprit) {
    for (const uint64_t at : {0U, 12'000U, 39'999U}) {
      Cluster cluster(hurried(culprit, 4));
      cluster.add_bucket(1, direct_bucket(40'000, "l8"));
      fill_direct(cluster, 1, 1);
      cluster.submit_all(1);
      ASSERT_TRUE(cluster.finish(1));
      const auto residual = cluster.node(1).reducers[1]->residual();
      const std::vector<float> before(residual.begin(), residual.end());
      cluster.rank(culprit).gradients[1]->as<float>()[at] = std::numeric_limits<float>::infinity();
      cluster.submit_all(1);
      ASSERT_TRUE(cluster.finish(1));
      for (uint32_t n = 0; n < 4; ++n) {
        for (const float value : cluster.node(n).results[1]->as<float>()) {
          ASSERT_TRUE(std::isnan(value));
        }
        EXPECT_EQ(cluster.rank(n).completion(1)->flags, layout::kCompletionNotFinite);
      }
      const auto after = cluster.node(1).reducers[1]->residual();
      EXPECT_EQ(std::vector<float>(after.begin(), after.end()), before);
    }
  }
}

TEST(Direct, ADeadNodeEndsTheJobForEverybodyAtAnyMoment) {
  uint32_t broken = 0;
  for (uint64_t after = 0; after < 12'000'000; after += 500'000) {
    ClusterOptions options = cluster_of(5, 1);
    options.network.bytes_per_second = 100'000'000;
    options.network.send_window = 2;
    Cluster cluster(options);
    cluster.add_bucket(1, direct_bucket(400'000));
    cluster.submit_all(1);
    pass(cluster, after);
    if (cluster.completed(1)) {
      break;
    }
    cluster.kill(2);
    cluster.run_until([&] { return cluster.completed(1); }, 4 * kSecond);
    EXPECT_TRUE(cluster.completed(1));
    if (!cluster.failure().ok()) {
      EXPECT_THAT(cluster.failure().message(), HasSubstr("node 2 (node-2)"));
      ++broken;
    }
  }
  EXPECT_GE(broken, 5u);
}

TEST(Direct, AJobCanBeRemovedAtAnyMoment) {
  uint32_t removed = 0;
  for (bool completed = false; !completed; ++removed) {
    ASSERT_LT(removed, 200u) << "it never completes";
    ClusterOptions options = cluster_of(4, 1);
    options.network.bytes_per_second = 100'000'000;
    options.abort_on_failure = false;
    Cluster cluster(options);
    cluster.add_bucket(1, direct_bucket(300'000, "l8"));
    cluster.submit_all(1);
    pass(cluster, removed * uint64_t{100'000});
    completed = cluster.completed(1);
    cluster.node(1).engine->remove_job(1);
    EXPECT_TRUE(cluster.node(1).engine->jobs().empty());
    cluster.settle();
    EXPECT_NE(cluster.rank(1).completion(1), nullptr);
  }
  EXPECT_GE(removed, 15u) << "moments of one operation";
}

TEST(Direct, NodesThatDisagreeOnTheWayAreNamed) {
  for (const uint64_t elements : {300U, 200'000U}) {
    for (uint32_t dissenter = 0; dissenter < 4; ++dissenter) {
      Cluster cluster(cluster_of(4, 1));
      for (uint32_t n = 0; n < 4; ++n) {
        BucketShape shape = direct_bucket(elements);
        shape.algorithm = n == dissenter ? engine::Algorithm::kRing : engine::Algorithm::kDirect;
        cluster.add_bucket_at(n, 1, shape);
      }
      cluster.submit_all(1);
      cluster.run_until([&] { return cluster.completed(1); }, 100 * kSecond);
      EXPECT_EQ(cluster.failure().code(), Code::kMismatch);
      EXPECT_THAT(cluster.failure().message(),
                  AllOf(HasSubstr("direct"), HasSubstr("node-" + std::to_string(dissenter))));
    }
  }
}

TEST(Direct, TheOneThatHasNotStartedIsNamed) {
  Cluster cluster(cluster_of(4, 1));
  cluster.add_bucket(1, direct_bucket(100'000));
  for (const uint32_t rank : {0U, 1U, 3U}) {
    cluster.submit(rank, 1);
  }
  pass(cluster, 6 * kSecond);
  EXPECT_EQ(sentence(cluster, 0), "waiting for node node-2 (index 2) to start");
  ASSERT_EQ(cluster.node(3).stalls.size(), 1u);
  EXPECT_EQ(cluster.node(3).stalls[0].view.waits_for_node, 2u);
  cluster.submit(2, 1);
  ASSERT_TRUE(cluster.finish(1));
}

TEST(Direct, TheOneWhoseShareIsMissingIsNamed) {
  Cluster cluster(cluster_of(4, 1));
  cluster.add_bucket(1, direct_bucket(400));
  cluster.network().cut("node-3", "node-1");
  cluster.submit_all(1);
  pass(cluster, 6 * kSecond);
  EXPECT_EQ(sentence(cluster, 1), "reducing, hop 1 of 2, waiting for node node-3 (index 3)");
  EXPECT_EQ(sentence(cluster, 0), "distributing, hop 2 of 2, waiting for node node-1 (index 1)");
  cluster.network().heal("node-3", "node-1");
  ASSERT_TRUE(cluster.finish(1));
}

TEST(Direct, ABucketThatCannotCollectIsRefused) {
  Cluster cluster(cluster_of(4, 1));
  engine::BucketSpec spec;
  compress::BucketShape shape;
  shape.layers.push_back({"layer", 100});
  shape.nodes = 4;
  shape.max_message_bytes = 70'000;
  std::vector<float> memory(100);
  spec.job = Cluster::kJob;
  spec.bucket = 9;
  spec.reducer = std::move(compress::make_exact_reducer(shape, compress::Dtype::kFloat32)).value();
  spec.algorithm = engine::Algorithm::kDirect;
  spec.elements = 100;
  spec.gradients = {memory.data()};
  spec.result = memory.data();
  const Status status = cluster.node(0).engine->add_bucket(std::move(spec));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("use algorithm ring"));
}

}  // namespace
}  // namespace gradwire::sim
