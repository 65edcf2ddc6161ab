// A flush: one dense operation that empties the residuals, agreed on by all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using testing::AllOf;
using testing::HasSubstr;

BucketShape sparse(const char* codec, std::vector<uint64_t> layers = {40'000, 3, 9001}) {
  return settled_bucket(codec, std::move(layers));
}

Request flush() {
  Request request;
  request.reduce_op = compress::ReduceOp::kAverage;
  request.flags = layout::kSubmissionFlush;
  return request;
}

Request average() {
  Request request = flush();
  request.flags = 0;
  return request;
}

void run(Cluster& cluster, uint32_t bucket, uint32_t step, const Request& request) {
  fill_integers(cluster, bucket, step);
  cluster.submit_all(bucket, request);
  ASSERT_TRUE(cluster.finish(bucket));
  cluster.settle();
}

TEST(Flush, EmptiesTheResidualsOfEveryCodec) {
  for (const std::string codec : {"none", "l8", "lads", "laco", "topk", "dropping"}) {
    const bool quantizes = codec == "laco" || codec == "topk";
    for (const uint32_t nodes : {1u, 2u, 5u}) {
      Cluster cluster(cluster_of(nodes, 2));
      cluster.add_bucket(1, sparse(codec.c_str()));
      for (uint32_t step = 1; step <= 6; ++step) {
        run(cluster, 1, step, average());
      }
      std::vector<double> before;
      for (uint32_t n = 0; n < nodes; ++n) {
        before.push_back(cluster.node(n).reducers[1]->stats().residual_norm);
      }
      run(cluster, 1, 7, flush());
      for (uint32_t n = 0; n < nodes; ++n) {
        const compress::CompressionStats stats = cluster.node(n).reducers[1]->stats();
        const auto residual = cluster.node(n).reducers[1]->residual();
        EXPECT_EQ(stats.density, 1.0);
        if (quantizes) {
          EXPECT_GT(before[n], 0);
          EXPECT_LT(stats.residual_norm, 0.15 * before[n]) << codec << ", " << nodes << " nodes";
        } else if (codec != "l8") {
          EXPECT_TRUE(std::ranges::all_of(residual, [](float value) { return value == 0; })) << codec;
          EXPECT_EQ(stats.residual_norm, 0) << codec;
        }
      }
    }
  }
}

TEST(Flush, BringsAllThatWasHeldBack) {
  Cluster cluster(cluster_of(3, 2));
  cluster.add_bucket(1, sparse("lads"));
  std::vector<double> balance(49'004, 0.0);
  for (uint32_t step = 1; step <= 5; ++step) {
    run(cluster, 1, step, step < 5 ? Request{} : Request{.flags = layout::kSubmissionFlush});
    for (size_t k = 0; k < balance.size(); ++k) {
      for (uint32_t i = 0; i < cluster.world(); ++i) {
        balance[k] += cluster.rank(i).gradients[1]->as<float>()[k];
      }
      balance[k] -= cluster.node(0).results[1]->as<float>()[k];
    }
  }
  EXPECT_TRUE(std::ranges::all_of(balance, [](double rest) { return rest == 0; }));
}

TEST(Flush, IsOneOperationAndMovesNoController) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, sparse("laco", {100'000}));
  for (uint32_t step = 1; step <= 60; ++step) {
    run(cluster, 1, step, average());
  }
  const double settled = cluster.node(0).reducers[1]->stats().density;
  run(cluster, 1, 61, flush());
  EXPECT_EQ(cluster.node(0).reducers[1]->stats().density, 1.0);
  double sum = 0;
  for (uint32_t step = 62; step <= 101; ++step) {
    run(cluster, 1, step, average());
    sum += cluster.node(0).reducers[1]->stats().density;
  }
  EXPECT_LT(settled, 0.05);
  EXPECT_GT(sum / 40, 0.005);
  EXPECT_LT(sum / 40, 0.05);
}

TEST(Flush, OfAnExactBucketIsAnAllreduce) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, bucket_of(100));
  run(cluster, 1, 1, flush());
  const float expected =
      (cluster.rank(0).gradients[1]->as<float>()[99] + cluster.rank(1).gradients[1]->as<float>()[99]) / 2;
  EXPECT_EQ(cluster.node(1).results[1]->as<float>()[99], expected);
}

TEST(Flush, ThatIsNotFiniteLeavesTheResidualAlone) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, sparse("laco"));
  run(cluster, 1, 1, average());
  const double before = cluster.node(0).reducers[1]->stats().residual_norm;
  fill_integers(cluster, 1, 2);
  cluster.rank(1).gradients[1]->as<float>()[7] = std::numeric_limits<float>::infinity();
  cluster.submit_all(1, flush());
  ASSERT_TRUE(cluster.finish(1));
  EXPECT_EQ(cluster.rank(0).completion(1)->flags, layout::kCompletionNotFinite);
  EXPECT_GT(before, 0);
  EXPECT_EQ(cluster.node(0).reducers[1]->stats().residual_norm, before);
}

TEST(Flush, ThatNotAllNodesDoEndsTheJobWithBothNamed) {
  for (const uint64_t elements : {uint64_t{100}, uint64_t{100'000}}) {
    for (const uint32_t flusher : {0u, 1u}) {
      Cluster cluster(cluster_of(2, 1));
      cluster.add_bucket(1, sparse("laco", {elements}));
      cluster.submit(flusher, 1, flush());
      cluster.submit(1 - flusher, 1, average());
      EXPECT_FALSE(cluster.run_until([&] { return cluster.completed(1) && cluster.failure().ok(); }));
      EXPECT_THAT(cluster.failure().message(),
                  AllOf(HasSubstr("flush average of"), HasSubstr("allreduce average of"), HasSubstr("node-0"),
                        HasSubstr("node-1")));
    }
  }
}

TEST(Flush, ThatNotAllLocalRanksDoEndsTheJobWithBothNamed) {
  Cluster cluster(cluster_of(1, 2));
  cluster.add_bucket(1, sparse("laco"));
  cluster.submit(0, 1, average());
  cluster.submit(1, 1, flush());
  cluster.run_until([&] { return !cluster.failure().ok(); });
  EXPECT_THAT(cluster.failure().message(), AllOf(HasSubstr("rank 0 on node 0 (node-0) asks for allreduce"),
                                                 HasSubstr("rank 1 on node 0 (node-0) for flush average")));
}

TEST(Flush, OtherOperationsAndUnknownFlagsAreRefused) {
  const auto refusal = [](uint8_t operation, uint8_t flags) {
    Cluster cluster(cluster_of(1, 1));
    cluster.add_bucket(1, sparse("laco"));
    Request request;
    request.operation = operation;
    request.flags = flags;
    cluster.submit_all(operation == layout::kOpBarrier ? 0 : 1, request);
    cluster.run_until([&] { return !cluster.failure().ok(); });
    return cluster.failure().message();
  };
  for (const uint8_t operation :
       {layout::kOpBroadcast, layout::kOpBarrier, layout::kOpAllgather, layout::kOpReduceScatter}) {
    EXPECT_THAT(refusal(operation, layout::kSubmissionFlush), HasSubstr("only an allreduce can be a flush"));
  }
  for (const uint8_t flags : {2, 3, 128}) {
    EXPECT_THAT(refusal(layout::kOpAllreduce, flags),
                HasSubstr("reserved fields are not zero: the client is newer"));
  }
}

}  // namespace
}  // namespace gradwire::sim
