// What operations do besides summing: verdicts, residuals, scale, broadcast, barrier, accounting.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

ClusterOptions scattered(uint32_t nodes, uint32_t locals, uint64_t seed = 1) {
  ClusterOptions options;
  options.nodes = nodes;
  options.local_ranks = locals;
  options.network.seed = seed;
  options.network.jitter_ns = 100'000;
  options.network.max_payload = 70'000;
  options.network.send_window = 2;
  return options;
}

void fill_normal(Cluster& cluster, uint32_t bucket, uint32_t step) {
  for (uint32_t i = 0; i < cluster.world(); ++i) {
    std::mt19937 random(step * 100 + i);
    std::normal_distribution<float> normal(0.0f, 1e-3f);
    for (float& value : cluster.rank(i).gradients[bucket]->as<float>()) {
      value = normal(random);
    }
  }
}

std::vector<float> residual_of(Cluster& cluster, uint32_t node, uint32_t bucket) {
  const std::span<const float> residual = cluster.node(node).reducers[bucket]->residual();
  return {residual.begin(), residual.end()};
}

TEST(Verdict, ANotFiniteGradientGivesNanToAllAndLeavesResidualsAlone) {
  for (const char* codec : {"none", "l8", "lads", "laco"}) {
    for (uint32_t nodes = 1; nodes <= 5; ++nodes) {
      for (const float poison : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
        Cluster cluster(scattered(nodes, 2, nodes));
        cluster.add_bucket(1, settled_bucket(codec, {10'000, 3, 50'001}));
        fill_normal(cluster, 1, 1);
        cluster.submit_all(1);
        ASSERT_TRUE(cluster.finish(1));
        std::vector<std::vector<float>> before;
        for (uint32_t n = 0; n < nodes; ++n) {
          before.push_back(residual_of(cluster, n, 1));
        }

        fill_normal(cluster, 1, 2);
        const uint32_t culprit = cluster.world() - 1;
        cluster.rank(culprit).gradients[1]->as<float>()[31'234] = poison;
        cluster.submit_all(1);
        ASSERT_TRUE(cluster.finish(1));
        for (uint32_t n = 0; n < nodes; ++n) {
          for (const float value : cluster.node(n).results[1]->as<float>()) {
            ASSERT_TRUE(std::isnan(value));
          }
          EXPECT_EQ(residual_of(cluster, n, 1), before[n]);
          EXPECT_EQ(cluster.node(n).engine->snapshot(1).buckets[1].not_finite, 1u);
        }
        for (uint32_t i = 0; i < cluster.world(); ++i) {
          EXPECT_EQ(cluster.rank(i).completion(1)->flags, layout::kCompletionNotFinite);
        }

        fill_normal(cluster, 1, 3);
        cluster.submit_all(1);
        ASSERT_TRUE(cluster.finish(1));
        EXPECT_EQ(cluster.rank(0).completion(1)->flags, 0u);
        for (uint32_t n = 0; n < nodes; ++n) {
          for (const float value : cluster.node(n).results[1]->as<float>()) {
            ASSERT_TRUE(std::isfinite(value));
          }
        }
      }
    }
  }
}

TEST(Conservation, WhatWasAppliedPlusAllResidualsIsAllGradients) {
  for (const char* codec : {"none", "l8", "lads", "laco"}) {
    for (uint32_t nodes : {1u, 2u, 5u}) {
      Cluster cluster(scattered(nodes, 2));
      cluster.add_bucket(1, settled_bucket(codec, {4000, 9001}));
      std::vector<double> balance(13'001, 0.0);
      double magnitude = 0;
      for (uint32_t step = 1; step <= 10; ++step) {
        fill_normal(cluster, 1, step);
        cluster.submit_all(1);
        ASSERT_TRUE(cluster.finish(1));
        for (size_t k = 0; k < balance.size(); ++k) {
          for (uint32_t i = 0; i < cluster.world(); ++i) {
            const double value = cluster.rank(i).gradients[1]->as<float>()[k];
            balance[k] += value;
            magnitude += std::abs(value);
          }
          balance[k] -= cluster.node(0).results[1]->as<float>()[k];
        }
      }
      for (uint32_t n = 0; n < nodes; ++n) {
        const std::vector<float> residual = residual_of(cluster, n, 1);
        for (size_t k = 0; k < residual.size(); ++k) {
          balance[k] -= residual[k];
        }
      }
      double error = 0;
      for (const double rest : balance) {
        error += std::abs(rest);
      }
      EXPECT_LT(error, 1e-5 * magnitude) << codec << ", " << nodes << " nodes";
    }
  }
}

TEST(Scale, AChangeOfLossScalingRescalesTheResidual) {
  Cluster cluster(scattered(3, 1));
  cluster.add_bucket(1, settled_bucket("laco", {30'000}));
  Request request;
  request.scale = 1024;
  fill_normal(cluster, 1, 1);
  cluster.submit_all(1, request);
  ASSERT_TRUE(cluster.finish(1));
  const double before = cluster.node(1).reducers[1]->stats().residual_norm;
  ASSERT_GT(before, 0);
  for (uint32_t i = 0; i < cluster.world(); ++i) {
    for (float& value : cluster.rank(i).gradients[1]->as<float>()) {
      value = 0;
    }
  }
  request.scale = 512;
  cluster.submit_all(1, request);
  ASSERT_TRUE(cluster.finish(1));
  EXPECT_LE(cluster.node(1).reducers[1]->stats().residual_norm, before * 0.75);
}

TEST(Broadcast, BringsTheRootsBytesToEverybody) {
  for (uint32_t nodes = 1; nodes <= 5; ++nodes) {
    for (const uint64_t elements : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{65'537}}) {
      Cluster cluster(scattered(nodes, 2, nodes + elements));
      cluster.add_bucket(1, settled_bucket("laco", {elements, 3}));
      for (uint32_t root = 0; root < cluster.world(); ++root) {
        fill_normal(cluster, 1, root + 1);
        Request request;
        request.operation = layout::kOpBroadcast;
        request.root = root;
        cluster.submit_all(1, request);
        ASSERT_TRUE(cluster.finish(1)) << nodes << " nodes, root " << root;
        Region& source = *cluster.rank(root).gradients[1];
        for (uint32_t n = 0; n < nodes; ++n) {
          EXPECT_EQ(std::memcmp(cluster.node(n).results[1]->data(), source.data(), source.size()), 0);
        }
      }
      EXPECT_EQ(cluster.node(0).reducers[1]->stats().operations, 0u);  // no codec has seen it
    }
  }
}

TEST(Broadcast, ARootThatRunsAheadWaitsForTheOthers) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Cluster cluster(scattered(4, 1, seed));
    cluster.add_bucket(1, settled_bucket("none", {100}));
    Request request;
    request.operation = layout::kOpBroadcast;
    uint32_t root_steps = 0;
    std::mt19937_64 random(seed);
    std::vector<uint32_t> steps(4, 0);
    const auto done = [&] {
      for (uint32_t r = 0; r < 4; ++r) {
        if (steps[r] < 8 && (steps[r] == 0 || cluster.rank(r).completion(1) != nullptr) &&
            (r == 0 || random() % 8 == 0)) {
          ++steps[r];
          cluster.rank(r).gradients[1]->as<float>()[0] = static_cast<float>(steps[r]);
          // Roots and kinds change from step to step, alike on all ranks.
          Request next = request;
          next.root = steps[r] % 3 == 0 ? 2 : 0;
          if (steps[r] % 4 == 0) {
            next = Request{};
          }
          cluster.submit(r, 1, next);
        }
      }
      root_steps = std::max(root_steps, steps[0]);
      return std::all_of(steps.begin(), steps.end(), [](uint32_t s) { return s == 8; }) &&
             cluster.completed(1);
    };
    bool finished = false;
    for (int i = 0; i < 5'000 && !finished; ++i) {
      finished = cluster.run_until(done, 10'000);
    }
    ASSERT_TRUE(finished) << "seed " << seed << ": " << cluster.failure().message();
    EXPECT_TRUE(cluster.failure().ok());
  }
}

TEST(Barrier, NobodyLeavesBeforeTheLastHasCome) {
  for (uint32_t nodes = 1; nodes <= 6; ++nodes) {
    Cluster cluster(scattered(nodes, 2));
    Request barrier;
    barrier.operation = layout::kOpBarrier;
    for (uint32_t step = 0; step < 3; ++step) {
      const uint32_t last = (step * 5) % cluster.world();
      for (uint32_t r = 0; r < cluster.world(); ++r) {
        if (r != last) {
          cluster.submit(r, 0, barrier);
        }
      }
      pass(cluster, 10'000'000);
      for (uint32_t r = 0; r < cluster.world(); ++r) {
        EXPECT_TRUE(r == last || cluster.rank(r).completion(0) == nullptr);
      }
      cluster.submit(last, 0, barrier);
      ASSERT_TRUE(cluster.finish(0));
    }
  }
}

TEST(Accounting, CountsWhatLeavesTheNode) {
  Cluster cluster(scattered(4, 2));
  cluster.add_bucket(1, settled_bucket("l8", {256'000}));
  fill_normal(cluster, 1, 1);
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  for (uint32_t n = 0; n < 4; ++n) {
    const engine::JobSnapshot job = cluster.node(n).engine->snapshot(1);
    ASSERT_EQ(job.buckets.size(), 2u);
    const engine::BucketSnapshot& bucket = job.buckets[1];
    EXPECT_EQ(bucket.raw_bytes, 2u * 3 * 64'000 * 4);  // 2(P-1) chunks
    EXPECT_GT(bucket.payload_bytes, bucket.raw_bytes / 4);
    EXPECT_LT(bucket.payload_bytes, bucket.raw_bytes / 4 * 1.01);
    EXPECT_EQ(job.payload_bytes + job.header_bytes, cluster.node(n).transport->counters().bytes_sent);
    EXPECT_EQ(bucket.received_bytes, bucket.payload_bytes);  // equal chunks
    const engine::JobTraffic sums = cluster.node(n).engine->traffic(1);
    EXPECT_EQ(sums.operations, 1u);
    EXPECT_EQ(sums.raw_bytes, bucket.raw_bytes);
    EXPECT_EQ(sums.payload_bytes, bucket.payload_bytes);
    EXPECT_EQ(sums.header_bytes, bucket.header_bytes);
    EXPECT_EQ(bucket.operations, 1u);
    EXPECT_EQ(job.operations, 1u);
    EXPECT_EQ(bucket.phase, layout::BucketPhase::kIdle);
    EXPECT_GT(bucket.total_ns, 0u);
    EXPECT_EQ(job.ranks.size(), 2u);
    EXPECT_EQ(job.ranks[1].submissions, 1u);
  }
}

TEST(Accounting, RemovedBucketsStayInAJobsSums) {
  Cluster cluster(scattered(2, 1));
  cluster.add_bucket(1, settled_bucket("l8", {256'000}));
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  const engine::JobTraffic before = cluster.node(0).engine->traffic(1);
  EXPECT_GT(before.payload_bytes, 0u);
  ASSERT_TRUE(cluster.node(0).engine->remove_bucket(1, 1).ok());
  EXPECT_EQ(cluster.node(0).engine->traffic(1).payload_bytes, before.payload_bytes);
  EXPECT_EQ(cluster.node(0).engine->traffic(77).payload_bytes, 0u);
}

TEST(Accounting, KnowsHowLateARankWas) {
  Cluster cluster(scattered(1, 3));
  cluster.add_bucket(1, settled_bucket("none", {10}));
  cluster.submit(0, 1);
  pass(cluster, 1);
  cluster.network().advance_to(1'000'000);
  cluster.submit(2, 1);
  pass(cluster, 1);
  engine::JobSnapshot job = cluster.node(0).engine->snapshot(1);
  EXPECT_EQ(job.buckets[1].phase, layout::BucketPhase::kGathering);
  EXPECT_EQ(job.buckets[1].missing_ranks, 1u);
  EXPECT_EQ(cluster.node(0).engine->inspect(1, 1, 1).missing_ranks, std::vector<uint32_t>{1});
  cluster.network().advance_to(3'000'000);
  cluster.submit(1, 1);
  ASSERT_TRUE(cluster.finish(1));
  job = cluster.node(0).engine->snapshot(1);
  EXPECT_EQ(job.ranks[0].late_max_ns, 0u);
  EXPECT_EQ(job.ranks[0].late_count, 0u);  // the first is never late
  EXPECT_EQ(job.ranks[1].late_count, 1u);
  EXPECT_EQ(job.ranks[1].submissions, 1u);
  EXPECT_EQ(job.ranks[1].late_max_ns, 3'000'000u);
  EXPECT_EQ(job.ranks[2].late_total_ns, 1'000'000u);
  EXPECT_EQ(job.buckets[1].gather_total_ns, 3'000'000u);
}

}  // namespace
}  // namespace gradwire::sim
