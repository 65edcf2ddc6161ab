// allgather and reduce_scatter among other operations: buckets in any order, several in flight, ranks that
// run ahead, kinds that change from step to step.
#include <algorithm>

#include "tests/sim/shards_support.h"

namespace gradwire::sim {
namespace {

using compress::Dtype;
using compress::ReduceOp;

constexpr uint32_t kSteps = 10;
constexpr uint32_t kBuckets = 7;

struct Plan {
  uint64_t seed;
  uint32_t world;

  // What all ranks do with a bucket at a step: no dependence between them, so that every order occurs.
  Request request(uint32_t bucket, uint32_t step) const {
    std::minstd_rand random(static_cast<uint32_t>(seed * 1000 + bucket * 100 + step + 1));
    random.discard(3);
    constexpr uint8_t kKinds[] = {layout::kOpAllreduce, layout::kOpBroadcast, layout::kOpAllgather,
                                  layout::kOpReduceScatter, layout::kOpReduceScatter};
    Request request;
    request.operation = kKinds[random() % std::size(kKinds)];
    if (request.operation == layout::kOpBroadcast) {
      request.root = static_cast<uint32_t>(random() % world);
    } else if (request.operation != layout::kOpAllgather) {
      constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
      request.reduce_op = kOps[random() % std::size(kOps)];
    }
    return request;
  }
};

void run(uint64_t seed) {
  const auto nodes = static_cast<uint32_t>(1 + seed % 6);
  ClusterOptions options = shard_options(nodes, 1 + seed % 2, seed);
  if (seed % 4 == 0) {
    for (uint32_t rank = 0; rank < nodes + 2; ++rank) {
      options.rank_node.push_back((rank * 5 + 1) % nodes);
    }
    for (uint32_t node = 0; node < nodes; ++node) {
      options.rank_node[node] = nodes - 1 - node;  // every node has one
    }
  }
  options.network.send_window = 1;
  options.network.inline_completions = seed % 5 == 0 ? 256 : 64;
  options.network.late_completions = seed % 4 == 0 ? 256 : 32;
  Cluster cluster(options);
  const Plan plan{seed, cluster.world()};
  const uint64_t sizes[] = {1, 40, 900, 3'000};
  const auto dtype_of = [](uint32_t bucket) { return kAllDtypes[bucket - 1]; };
  for (uint32_t bucket = 1; bucket <= kBuckets; ++bucket) {
    cluster.add_bucket(
        bucket, shard_shape(sizes[(bucket + seed) % std::size(sizes)] * cluster.world(), dtype_of(bucket)));
  }
  std::mt19937_64 random(seed);
  // Every rank looks at its result and submits the next step of a bucket as soon as it likes.
  std::vector<uint32_t> steps((kBuckets + 1) * cluster.world(), 0);
  const auto done = [&] {
    bool all = true;
    for (uint32_t rank = 0; rank < cluster.world(); ++rank) {
      for (uint32_t bucket = 1; bucket <= kBuckets; ++bucket) {
        uint32_t& step = steps[(kBuckets + 1) * rank + bucket];
        const bool idle = step == 0 || cluster.rank(rank).completion(bucket) != nullptr;
        all = all && idle && step == kSteps;
        if (!idle || step == kSteps || random() % 4 == 0) {
          continue;
        }
        if (step > 0) {
          expect_result(cluster, cluster.rank(rank).node, bucket, dtype_of(bucket),
                        plan.request(bucket, step), step);
        }
        ++step;
        const Request request = plan.request(bucket, step);
        fill_rank(cluster, rank, bucket, dtype_of(bucket), request.reduce_op, step);
        cluster.submit(rank, bucket, request);
      }
    }
    return all || testing::Test::HasFailure();
  };
  bool finished = false;
  for (int round = 0; round < 20'000 && !finished; ++round) {
    finished = cluster.run_until(done, 20'000);
  }
  ASSERT_TRUE(finished) << cluster.failure().message();
  ASSERT_TRUE(cluster.failure().ok()) << cluster.failure().message();
  for (uint32_t bucket = 1; bucket <= kBuckets; ++bucket) {
    for (uint32_t node = 0; node < nodes; ++node) {
      expect_result(cluster, node, bucket, dtype_of(bucket), plan.request(bucket, kSteps), kSteps);
    }
  }
}

TEST(ShardsMixed, OperationsOfAllKindsOnManyBucketsStayInSequence) {
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    run(seed);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(ShardsMixed, SmallOperationsMayArriveBeforeTheirNodeHasStarted) {
  for (const uint8_t operation : {layout::kOpReduceScatter, layout::kOpAllgather}) {
    for (uint32_t late = 0; late < 5; ++late) {
      Cluster cluster(shard_options(5, 1, late + 1));
      cluster.add_bucket(1, shard_shape(500, Dtype::kInt32));
      Request request;
      request.operation = operation;
      for (uint32_t step = 1; step <= 3; ++step) {
        for (uint32_t rank = 0; rank < 5; ++rank) {
          fill_rank(cluster, rank, 1, Dtype::kInt32, request.reduce_op, step);
          if (rank != late) {
            cluster.submit(rank, 1, request);
          }
        }
        pass(cluster, 10'000'000);
        for (uint32_t rank = 0; rank < 5; ++rank) {
          EXPECT_TRUE(rank == late || cluster.rank(rank).completion(1) == nullptr);
        }
        cluster.submit(late, 1, request);
        ASSERT_TRUE(cluster.finish(1));
        for (uint32_t node = 0; node < 5; ++node) {
          expect_result(cluster, node, 1, Dtype::kInt32, request, step);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::sim
