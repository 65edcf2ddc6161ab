// Large worlds, and what is left of an epoch that is over.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/sim/other_job.h"

namespace gradwire::sim {
namespace {

ClusterOptions jittered(uint32_t nodes, uint32_t locals) {
  ClusterOptions options = cluster_of(nodes, locals);
  options.network.jitter_ns = 30'000;
  options.network.bytes_per_second = 1'000'000'000;
  return options;
}

// The result plus what every node kept back is the sum of all gradients; the exact reducer keeps nothing.
void expect_conserved(Cluster& cluster, const std::string& what) {
  const auto result = cluster.node(0).results[1]->as<float>();
  double error = 0;
  double magnitude = 0;
  std::vector<double> balance(result.size(), 0.0);
  for (uint32_t r = 0; r < cluster.world(); ++r) {
    const auto gradient = cluster.rank(r).gradients[1]->as<float>();
    for (size_t k = 0; k < balance.size(); ++k) {
      balance[k] += gradient[k];
      magnitude += std::abs(gradient[k]);
    }
  }
  for (uint32_t n = 0; n < cluster.nodes(); ++n) {
    const std::span<const float> residual = cluster.node(n).reducers[1]->residual();
    for (size_t k = 0; k < residual.size(); ++k) {
      balance[k] -= residual[k];
    }
    EXPECT_EQ(std::memcmp(cluster.node(n).results[1]->data(), result.data(), result.size_bytes()), 0)
        << what << ", node " << n;
  }
  for (size_t k = 0; k < balance.size(); ++k) {
    error += std::abs(balance[k] - result[k]);
  }
  EXPECT_LT(error, 1e-5 * magnitude) << what;
}

TEST(World, SixtyFourRanksAverageWithEveryCodecOnManyNodesAndOnFew) {
  for (const uint32_t nodes : {16u, 64u}) {
    for (const char* codec : {"", "none", "l8", "lads", "laco"}) {
      Cluster cluster(jittered(nodes, 64 / nodes));
      BucketShape shape;
      shape.name = "gradients";
      shape.layers = {9'001, 40, 6'000};
      shape.codec = codec;
      shape.settings = settled(0.05);
      cluster.add_bucket(1, shape);
      for (uint32_t r = 0; r < 64; ++r) {
        std::minstd_rand random(r + 1);
        for (float& value : cluster.rank(r).gradients[1]->as<float>()) {
          value = static_cast<float>(random() % 20'001) * 1e-4f - 1;
        }
      }
      cluster.submit_all(1);
      const std::string what = std::string(codec) + " on " + std::to_string(nodes) + " nodes";
      ASSERT_TRUE(cluster.finish(1)) << what;
      expect_conserved(cluster, what);
      for (uint32_t n = 0; n < nodes; ++n) {
        EXPECT_TRUE(cluster.node(n).stalls.empty()) << what;
      }
    }
  }
}

struct Recorded {
  std::vector<std::byte> header, payload;
};

TEST(World, MessagesOfAnEpochThatIsOverAreDroppedAndCounted) {
  Cluster cluster(jittered(2, 1));
  BucketShape shape;
  shape.layers = {50'000};
  cluster.add_bucket(1, shape);
  std::vector<Recorded> old;
  cluster.network().set_filter([&old](transport::SimMessage& message) {
    if (message.to == "node-1") {
      old.push_back({message.header, message.payload});
    }
    return 1;
  });
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  cluster.network().set_filter(nullptr);
  ASSERT_GT(old.size(), 2u);
  const auto replay = [&] {
    for (const Recorded& message : old) {
      cluster.network().inject("node-0", "node-1", message.header, message.payload);
    }
  };
  const auto counters = [&] { return cluster.node(1).engine->counters(); };

  // Aborted, but still there.
  for (uint32_t n = 0; n < 2; ++n) {
    cluster.node(n).engine->abort_job(Cluster::kJob, Status(Code::kAborted, "rank 0 died"));
  }
  replay();
  cluster.settle();
  EXPECT_EQ(counters().after_end, old.size());
  EXPECT_EQ(counters().unknown_key, 0u);

  // Gone; the same ranks are back in the next epoch, with the same bucket and sequence numbers.
  for (uint32_t n = 0; n < 2; ++n) {
    cluster.node(n).engine->remove_job(Cluster::kJob);
  }
  OtherJob next(cluster);
  next.add_bucket(1, 50'000);
  uint64_t replays = 0;
  EXPECT_GT(next.run(1, 5,
                     [&] {
                       if (replays < 20) {
                         replay();
                         ++replays;
                       }
                     }),
            0u);
  cluster.settle();
  EXPECT_EQ(counters().unknown_key, replays * old.size());
  EXPECT_EQ(counters().after_end, old.size());
  EXPECT_EQ(counters().malformed, 0u);
  EXPECT_TRUE(next.failures(1).empty());
}

TEST(World, WhatWasUnderWayWhenAJobWasRemovedIsDroppedAndCounted) {
  Cluster cluster(jittered(2, 1));
  OtherJob other(cluster);
  other.add_bucket(1, 10'000);
  BucketShape shape;
  shape.layers = {200'000};
  cluster.add_bucket(1, shape);
  cluster.submit_all(1);
  pass(cluster, 150'000);
  ASSERT_EQ(cluster.rank(0).completion(1), nullptr);
  cluster.node(1).engine->remove_job(Cluster::kJob);
  EXPECT_GT(other.run(1, 5), 0u);
  EXPECT_GT(cluster.node(1).engine->counters().unknown_key, 0u);
  EXPECT_TRUE(other.failures(0).empty());
  EXPECT_TRUE(other.failures(1).empty());
}

}  // namespace
}  // namespace gradwire::sim
