// Many buckets at once, in any order, with the smallest windows and random delays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

#ifdef __SANITIZE_THREAD__  // twenty times slower
constexpr uint32_t kBuckets = 100;
constexpr uint64_t kSeeds = 4;
#else
constexpr uint32_t kBuckets = 200;
constexpr uint64_t kSeeds = 24;
#endif

// Sizes from "no grant needed" to several segments.
uint64_t elements_of(uint32_t bucket) {
  constexpr uint64_t kSizes[] = {1, 100, 5'000, 30'000, 0, 77'777};
  return kSizes[bucket % std::size(kSizes)];
}

ClusterOptions tiny(uint64_t seed, uint32_t nodes, uint32_t locals) {
  ClusterOptions options;
  options.nodes = nodes;
  options.local_ranks = locals;
  options.network.seed = seed;
  options.network.jitter_ns = seed % 3 == 0 ? 0 : 300'000;
  options.network.bytes_per_second = seed % 2 == 0 ? 0 : 1'000'000'000;
  options.network.max_payload = 70'000;
  options.network.send_window = 1;
  options.network.inline_completions = seed % 5 == 0 ? 256 : 64;
  options.network.late_completions = seed % 4 == 0 ? 256 : 32;
  return options;
}

void fill_ordered(Cluster& cluster, uint32_t bucket, uint32_t step) {
  for (uint32_t i = 0; i < cluster.world(); ++i) {
    auto values = cluster.rank(i).gradients[bucket]->as<int32_t>();
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] = static_cast<int32_t>(k * 31 + bucket * 7 + step * 3 + i);
    }
  }
}

void expect_ordered_sums(Cluster& cluster, uint32_t bucket, uint32_t step) {
  const auto world = static_cast<int32_t>(cluster.world());
  for (uint32_t n = 0; n < cluster.nodes(); ++n) {
    const auto values = cluster.node(n).results[bucket]->as<int32_t>();
    for (size_t k = 0; k < values.size(); ++k) {
      const auto expected =
          static_cast<int32_t>(k * 31 + bucket * 7 + step * 3) * world + world * (world - 1) / 2;
      ASSERT_EQ(values[k], expected) << "node " << n << ", bucket " << bucket << ", element " << k;
    }
  }
}

TEST(Order, ManyBucketsInAnotherOrderOnEveryRankComplete) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const uint32_t nodes = 2 + static_cast<uint32_t>(seed % 4);
    Cluster cluster(tiny(seed, nodes, 1 + static_cast<uint32_t>(seed % 2)));
    std::mt19937_64 random(seed);
    for (uint32_t bucket = 1; bucket <= kBuckets; ++bucket) {
      BucketShape shape;
      shape.name = "bucket";
      shape.layers = {elements_of(bucket)};
      shape.dtype = compress::Dtype::kInt32;
      cluster.add_bucket(bucket, shape);
      fill_ordered(cluster, bucket, 0);
    }
    std::vector<std::vector<uint32_t>> orders(cluster.world());
    for (std::vector<uint32_t>& order : orders) {
      order.resize(kBuckets);
      std::iota(order.begin(), order.end(), 1);
      std::shuffle(order.begin(), order.end(), random);
    }
    // The ranks take turns at random, and time goes on in between.
    std::vector<uint32_t> at(cluster.world(), 0);
    for (uint32_t left = kBuckets * cluster.world(); left > 0;) {
      const auto rank = static_cast<uint32_t>(random() % cluster.world());
      if (at[rank] < kBuckets) {
        cluster.submit(rank, orders[rank][at[rank]++]);
        --left;
      }
      if (random() % 16 == 0) {
        pass(cluster, 50'000);
      }
    }
    for (uint32_t bucket = 1; bucket <= kBuckets; ++bucket) {
      ASSERT_TRUE(cluster.finish(bucket)) << "seed " << seed;
      expect_ordered_sums(cluster, bucket, 0);
    }
  }
}

TEST(Order, RanksThatRunAheadWithManyStepsStayInSequence) {
  constexpr uint32_t kSteps = 12;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster cluster(tiny(seed, 2 + static_cast<uint32_t>(seed % 5), 1));
    std::mt19937_64 random(seed);
    for (uint32_t bucket = 1; bucket <= 6; ++bucket) {
      BucketShape shape;
      shape.name = "bucket";
      shape.layers = {elements_of(bucket)};
      shape.dtype = compress::Dtype::kInt32;
      cluster.add_bucket(bucket, shape);
    }
    // Every rank submits the next step of a bucket as soon as its last one has completed, with pauses.
    std::vector<uint32_t> steps(7 * cluster.world(), 0);
    const auto done = [&] {
      bool all = true;
      for (uint32_t r = 0; r < cluster.world(); ++r) {
        for (uint32_t bucket = 1; bucket <= 6; ++bucket) {
          uint32_t& step = steps[7 * r + bucket];
          const bool idle = step == 0 || cluster.rank(r).completion(bucket) != nullptr;
          if (idle && step > 0 && step == kSteps) {
            continue;
          }
          all = false;
          if (idle && random() % 4 != 0) {
            ++step;
            auto values = cluster.rank(r).gradients[bucket]->as<int32_t>();
            for (size_t k = 0; k < values.size(); ++k) {
              values[k] = static_cast<int32_t>(k * 31 + bucket * 7 + step * 3 + r);
            }
            cluster.submit(r, bucket);
          }
        }
      }
      return all;
    };
    bool finished = false;
    for (int round = 0; round < 20'000 && !finished; ++round) {
      finished = cluster.run_until(done, 20'000);
    }
    ASSERT_TRUE(finished) << "seed " << seed << ": " << cluster.failure().message();
    for (uint32_t bucket = 1; bucket <= 6; ++bucket) {
      expect_ordered_sums(cluster, bucket, kSteps);
    }
  }
}

TEST(Order, TheSameSeedGivesTheSameSchedule) {
  const auto fingerprint = [] {
    Cluster cluster(tiny(11, 4, 2));
    BucketShape shape;
    shape.layers = {123'456};
    cluster.add_bucket(1, shape);
    cluster.submit_all(1);
    EXPECT_TRUE(cluster.finish(1));
    cluster.settle();
    return cluster.network().fingerprint();
  };
  EXPECT_EQ(fingerprint(), fingerprint());
}

TEST(Order, LargeRingsOfManyNodesComplete) {
  Cluster cluster(tiny(3, 64, 1));
  for (uint32_t bucket = 1; bucket <= 6; ++bucket) {
    BucketShape shape;
    shape.layers = {elements_of(bucket)};
    shape.dtype = compress::Dtype::kInt32;
    cluster.add_bucket(bucket, shape);
    fill_ordered(cluster, bucket, 5);
    cluster.submit_all(bucket);
  }
  for (uint32_t bucket = 1; bucket <= 6; ++bucket) {
    ASSERT_TRUE(cluster.finish(bucket));
    expect_ordered_sums(cluster, bucket, 5);
  }
}

}  // namespace
}  // namespace gradwire::sim
