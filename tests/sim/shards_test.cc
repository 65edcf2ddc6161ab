// allgather and reduce_scatter: every placement, element type and size against a direct computation; the
// verdict; accounting.
#include <limits>

#include "tests/sim/shards_support.h"

namespace gradwire::sim {
namespace {

using compress::Dtype;
using compress::ReduceOp;

// Both operations, one bucket after another, on buckets of four sizes whose types follow `turn`.
void run_both(const ClusterOptions& options, uint32_t turn) {
  Cluster cluster(options);
  const uint64_t world = cluster.world();
  const uint64_t sizes[] = {world, 3 * world, (4096 / world + 1) * world, (65'536 / world + 1) * world};
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
  for (uint32_t bucket = 1; bucket <= std::size(sizes); ++bucket) {
    const Dtype dtype = kAllDtypes[(turn + bucket * 3) % std::size(kAllDtypes)];
    cluster.add_bucket(bucket, shard_shape(sizes[bucket - 1], dtype));
    Request request;
    request.operation = layout::kOpReduceScatter;
    request.reduce_op = kOps[(turn + bucket) % std::size(kOps)];
    for (uint32_t rank = 0; rank < world; ++rank) {
      fill_rank(cluster, rank, bucket, dtype, request.reduce_op, turn);
    }
    cluster.submit_all(bucket, request);
    ASSERT_TRUE(cluster.finish(bucket));
    for (uint32_t node = 0; node < cluster.nodes(); ++node) {
      expect_result(cluster, node, bucket, dtype, request, turn);
    }
    const ReduceOp filled = request.reduce_op;
    request.operation = layout::kOpAllgather;
    request.reduce_op = ReduceOp::kSum;
    cluster.submit_all(bucket, request);
    ASSERT_TRUE(cluster.finish(bucket));
    request.reduce_op = filled;
    for (uint32_t node = 0; node < cluster.nodes(); ++node) {
      expect_result(cluster, node, bucket, dtype, request, turn);
    }
  }
}

TEST(Shards, AreExactForEveryNumberOfNodesAndRanks) {
  for (uint32_t nodes = 1; nodes <= 8; ++nodes) {
    for (uint32_t locals = 1; locals <= 4; ++locals) {
      run_both(shard_options(nodes, locals, nodes * 4 + locals), nodes * 4 + locals);
      ASSERT_FALSE(HasFatalFailure()) << nodes << " nodes, " << locals << " ranks each";
    }
  }
}

TEST(Shards, AreExactWhereverTheRanksAre) {
  const std::vector<std::vector<uint32_t>> placements = {
      {0, 1, 0, 1}, {1, 0, 1, 0}, {0, 0, 0, 1}, {2, 1, 0}, {1, 0, 1, 2, 2, 0}, {3, 3, 0, 1, 2, 3, 0}};
  for (uint32_t i = 0; i < placements.size(); ++i) {
    for (uint32_t turn = 0; turn < 7; ++turn) {
      ClusterOptions options =
          shard_options(1 + *std::max_element(placements[i].begin(), placements[i].end()), 1, turn);
      options.rank_node = placements[i];
      run_both(options, turn);
      ASSERT_FALSE(HasFatalFailure()) << "placement " << i << ", turn " << turn;
    }
  }
}

TEST(Shards, ANodeAloneHandlesManySegments) {
  Cluster cluster(shard_options(1, 2, 1));
  cluster.add_bucket(1, shard_shape(200'000, Dtype::kFloat64));
  for (const uint8_t operation : {layout::kOpReduceScatter, layout::kOpAllgather}) {
    Request request;
    request.operation = operation;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      fill_rank(cluster, rank, 1, Dtype::kFloat64, request.reduce_op, operation);
    }
    cluster.submit_all(1, request);
    ASSERT_TRUE(cluster.finish(1));
    expect_result(cluster, 0, 1, Dtype::kFloat64, request, operation);
  }
}

TEST(Shards, AnEmptyBucketHasEmptyOnes) {
  Cluster cluster(shard_options(3, 2, 1));
  cluster.add_bucket(1, shard_shape(0, Dtype::kFloat32));
  for (const uint8_t operation : {layout::kOpReduceScatter, layout::kOpAllgather}) {
    Request request;
    request.operation = operation;
    cluster.submit_all(1, request);
    EXPECT_TRUE(cluster.finish(1));
  }
}

TEST(Shards, AnAverageIsDividedOnce) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat64}) {
    Cluster cluster(shard_options(3, 2, 5));
    cluster.add_bucket(1, shard_shape(6'000, dtype));
    for (const uint8_t operation : {layout::kOpReduceScatter, layout::kOpAllreduce}) {
      Request request;
      request.operation = operation;
      request.reduce_op = ReduceOp::kAverage;
      for (uint32_t rank = 0; rank < cluster.world(); ++rank) {
        fill_rank(cluster, rank, 1, dtype, request.reduce_op, 1);
      }
      cluster.submit_all(1, request);
      ASSERT_TRUE(cluster.finish(1));
      for (uint32_t node = 0; node < cluster.nodes(); ++node) {
        expect_result(cluster, node, 1, dtype, request, 1);
      }
    }
  }
}

TEST(Shards, ACompressedBucketKeepsItsResidualAndReducesThemExactly) {
  Cluster cluster(shard_options(3, 2, 2));
  BucketShape shape = shard_shape(60'000, Dtype::kFloat32);
  shape.codec = "laco";
  shape.settings.warm_start_steps = 0;
  cluster.add_bucket(1, shape);
  for (uint32_t rank = 0; rank < cluster.world(); ++rank) {
    fill_rank(cluster, rank, 1, Dtype::kFloat32, ReduceOp::kSum, 1);
  }
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  const std::span<const float> residual = cluster.node(1).reducers[1]->residual();
  const std::vector<float> before(residual.begin(), residual.end());
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {  // a minimum cannot be compressed
    Request request;
    request.operation = layout::kOpReduceScatter;
    request.reduce_op = op;
    request.scale = 512;  // means nothing here
    cluster.submit_all(1, request);
    ASSERT_TRUE(cluster.finish(1));
    for (uint32_t node = 0; node < cluster.nodes(); ++node) {
      expect_result(cluster, node, 1, Dtype::kFloat32, request, 1);
    }
  }
  const std::span<const float> after = cluster.node(1).reducers[1]->residual();
  EXPECT_TRUE(std::equal(after.begin(), after.end(), before.begin(), before.end()));
  EXPECT_EQ(cluster.node(1).reducers[1]->stats().operations, 1u);
}

TEST(Shards, OnlyTheNodeThatReducesANotFiniteShardIsTold) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat64}) {
    for (uint32_t nodes = 1; nodes <= 4; ++nodes) {
      ClusterOptions options = shard_options(nodes, 2, nodes);
      for (uint32_t rank = 0; rank < 2 * nodes; ++rank) {
        options.rank_node.push_back(rank % nodes);
      }
      Cluster cluster(options);
      const size_t elements = 2'000 * cluster.world();
      cluster.add_bucket(1, shard_shape(elements, dtype));
      for (uint32_t rank = 0; rank < cluster.world(); ++rank) {
        fill_rank(cluster, rank, 1, dtype, ReduceOp::kSum, 1);
      }
      for (uint32_t node = 0; node < nodes; ++node) {
        for (size_t at = 0; at < elements; ++at) {
          put(*cluster.node(node).results[1], dtype, at, 77);
        }
      }
      // In the shard of rank 1, from the last rank.
      Region& culprit = *cluster.rank(cluster.world() - 1).gradients[1];
      const size_t width = compress::dtype_size(dtype);
      std::memset(culprit.data() + 3'000 * width, 0x7f, width);  // NaN, but a number in fp32 and bf16
      if (dtype == Dtype::kFloat32) {
        culprit.as<float>()[3'000] = std::numeric_limits<float>::infinity();
      } else if (dtype == Dtype::kBfloat16) {
        culprit.as<uint16_t>()[3'000] = 0x7f80;
      } else if (dtype == Dtype::kFloat64) {
        culprit.as<double>()[3'000] = -std::numeric_limits<double>::infinity();
      }
      Request request;
      request.operation = layout::kOpReduceScatter;
      cluster.submit_all(1, request);
      ASSERT_TRUE(cluster.finish(1));
      for (uint32_t node = 0; node < nodes; ++node) {
        const bool told = node == cluster.rank(1).node;
        EXPECT_EQ(cluster.node(node).engine->snapshot(1).buckets[1].not_finite, told ? 1u : 0u);
        for (size_t at = 0; told && at < elements; ++at) {
          const double value = get(*cluster.node(node).results[1], dtype, at);
          const bool own = cluster.rank(static_cast<uint32_t>(at / 2'000)).node == node;
          ASSERT_TRUE(own ? std::isnan(value) : value == 77) << nodes << " nodes, element " << at;
        }
        if (!told) {
          expect_result(cluster, node, 1, dtype, request, 1);
        }
      }
      for (uint32_t rank = 0; rank < cluster.world(); ++rank) {
        const bool told = cluster.rank(rank).node == cluster.rank(1).node;
        EXPECT_EQ(cluster.rank(rank).completion(1)->flags, told ? layout::kCompletionNotFinite : 0u);
      }
    }
  }
}

TEST(Shards, AreGatheredBitForBitWhateverTheyHold) {
  Cluster cluster(shard_options(4, 1, 3));
  cluster.add_bucket(1, shard_shape(4'000, Dtype::kFloat32));
  std::mt19937 random(1);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (uint32_t& word : cluster.rank(rank).gradients[1]->as<uint32_t>()) {
      word = static_cast<uint32_t>(random());  // many of them NaN
    }
  }
  Request request;
  request.operation = layout::kOpAllgather;
  cluster.submit_all(1, request);
  ASSERT_TRUE(cluster.finish(1));
  for (uint32_t node = 0; node < 4; ++node) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(cluster.rank(rank).completion(1)->flags, 0u);
      EXPECT_EQ(std::memcmp(cluster.node(node).results[1]->data() + rank * 4'000,
                            cluster.rank(rank).gradients[1]->data() + rank * 4'000, 4'000),
                0);
    }
  }
}

TEST(Shards, AreCountedAsWhatLeavesTheNode) {
  Cluster cluster(shard_options(4, 2, 1));
  cluster.add_bucket(1, shard_shape(256'000, Dtype::kFloat16));
  uint64_t sent = 0;
  for (const uint8_t operation : {layout::kOpReduceScatter, layout::kOpAllgather}) {
    Request request;
    request.operation = operation;
    cluster.submit_all(1, request);
    ASSERT_TRUE(cluster.finish(1));
    cluster.settle();
    // 16-bit sums travel as fp32.
    sent += 3u * 64'000 * (operation == layout::kOpReduceScatter ? 4 : 2);
    for (uint32_t n = 0; n < 4; ++n) {
      const engine::JobSnapshot job = cluster.node(n).engine->snapshot(1);
      const engine::BucketSnapshot& bucket = job.buckets[1];
      EXPECT_EQ(bucket.raw_bytes, bucket.operations * 3u * 64'000 * 2);  // P-1 chunks
      EXPECT_EQ(bucket.payload_bytes, sent);
      EXPECT_EQ(bucket.received_bytes, sent);
      EXPECT_EQ(job.payload_bytes + job.header_bytes, cluster.node(n).transport->counters().bytes_sent);
      EXPECT_EQ(job.operations, 0u);  // of allreduces
    }
  }
}

}  // namespace
}  // namespace gradwire::sim
