// What goes wrong without anybody's ill will: deaths, cut links, late ranks, ranks and nodes that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "client/include/gradwire/gradwire.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ClusterOptions narrow(uint32_t nodes, uint32_t locals) {
  ClusterOptions options = cluster_of(nodes, locals);
  options.network.bytes_per_second = 100'000'000;
  options.network.send_window = 2;
  return options;
}

// Everybody's latest operation of the bucket ended with an error.
void expect_all_aborted(Cluster& cluster, uint32_t bucket) {
  for (uint32_t r = 0; r < cluster.world(); ++r) {
    if (cluster.node(cluster.rank(r).node).engine == nullptr) {
      continue;
    }
    ASSERT_NE(cluster.rank(r).completion(bucket), nullptr) << "rank " << r;
    EXPECT_EQ(cluster.rank(r).completion(bucket)->status, GW_ERR_ABORTED);
    EXPECT_EQ(cluster.rank(r).session->abort_status.load(std::memory_order_acquire), GW_ERR_ABORTED);
    EXPECT_EQ(cluster.rank(r).session->abort_cause, cluster.failure().message());
  }
}

TEST(Failure, ADeadNodeEndsTheJobForItsNeighboursAtAnyMoment) {
  uint32_t broken = 0;
  for (uint64_t after = 0; after < 12'000'000; after += 700'000) {
    Cluster cluster(narrow(4, 2));
    cluster.add_bucket(1, bucket_of(400'000));
    cluster.submit_all(1);
    pass(cluster, after);
    if (cluster.completed(1)) {
      break;
    }
    cluster.kill(2);
    cluster.run_until([&] { return cluster.completed(1); }, 4 * kSecond);
    if (!cluster.failure().ok()) {
      EXPECT_THAT(cluster.failure().message(), AllOf(HasSubstr("node 2 (node-2)"), HasSubstr("sim")));
      expect_all_aborted(cluster, 1);
      ++broken;
    } else {
      EXPECT_TRUE(cluster.completed(1));  // it had done its part
    }
    EXPECT_LE(cluster.node(0).failures.size(), 1u);
  }
  EXPECT_GT(broken, 5u);
}

TEST(Failure, ANodeThatDiesWhileNothingIsInFlightIsMissedByTheNextOperation) {
  Cluster cluster(narrow(3, 1));
  cluster.add_bucket(1, bucket_of(100));
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  cluster.kill(1);
  pass(cluster, kSecond);
  EXPECT_TRUE(cluster.failure().ok());
  cluster.submit(0, 1);
  cluster.submit(2, 1);
  cluster.run_until([&] { return cluster.completed(1); }, kSecond);
  EXPECT_THAT(cluster.failure().message(), HasSubstr("node 1"));
  expect_all_aborted(cluster, 1);
}

TEST(Failure, ACutLinkIsReportedAsAStallAndThenAsADeadline) {
  ClusterOptions options = narrow(3, 1);
  options.engine.operation_timeout_ns = 60 * kSecond;
  Cluster cluster(options);
  cluster.add_bucket(1, bucket_of(400'000));
  cluster.network().cut("node-0", "node-1");
  cluster.submit_all(1);
  EXPECT_FALSE(cluster.run_until([&] { return cluster.completed(1); }, 200 * kSecond));
  for (uint32_t n = 0; n < 3; ++n) {
    ASSERT_EQ(cluster.node(n).stalls.size(), 2u);
    EXPECT_FALSE(cluster.node(n).stalls[0].deadline);
    EXPECT_EQ(cluster.node(n).stalls[0].waited_ns, 5 * kSecond);
    EXPECT_THAT(cluster.node(n).stalls[0].view.missing_ranks, IsEmpty());
    EXPECT_EQ(cluster.node(n).stalls[0].bucket_name, "gradients");
    EXPECT_TRUE(cluster.node(n).stalls[1].deadline);
    EXPECT_EQ(cluster.node(n).stalls[1].waited_ns, 60 * kSecond);
  }
  EXPECT_TRUE(cluster.failure().ok());
}

TEST(Failure, ALinkThatHealsGoesOnAndSaysSo) {
  Cluster cluster(narrow(3, 1));
  cluster.add_bucket(1, bucket_of(400'000));
  cluster.network().cut("node-0", "node-1");
  cluster.submit_all(1);
  pass(cluster, 20 * kSecond);
  cluster.network().heal("node-0", "node-1");
  ASSERT_TRUE(cluster.finish(1));
  for (uint32_t n = 0; n < 3; ++n) {
    EXPECT_EQ(cluster.node(n).stalls.size(), 1u);
    EXPECT_EQ(cluster.node(n).progress_after_stall, 1u);
    EXPECT_EQ(cluster.node(n).engine->next_deadline_ns(), UINT64_MAX);
  }
}

TEST(Failure, ARankThatDoesNotSubmitIsNamed) {
  Cluster cluster(narrow(2, 3));
  cluster.add_bucket(1, bucket_of(1000));
  for (const uint32_t r : {0u, 1u, 2u, 4u}) {
    cluster.submit(r, 1);
  }
  pass(cluster, 400 * kSecond);
  ASSERT_EQ(cluster.node(1).stalls.size(), 2u);
  EXPECT_THAT(cluster.node(1).stalls[0].view.missing_ranks, ElementsAre(3, 5));
  EXPECT_EQ(cluster.node(1).stalls[0].sequence, 1u);
  EXPECT_THAT(cluster.node(1).stalls[1].view.missing_ranks, ElementsAre(3, 5));
  ASSERT_EQ(cluster.node(0).stalls.size(), 2u);
  EXPECT_THAT(cluster.node(0).stalls[0].view.missing_ranks, IsEmpty());
}

TEST(Failure, ClocksOfManyBucketsRunOutInTheirOrder) {
  Cluster cluster(narrow(1, 2));
  for (uint32_t bucket = 1; bucket <= 5; ++bucket) {
    cluster.add_bucket(bucket, bucket_of(10));
  }
  for (uint32_t bucket = 5; bucket >= 1; --bucket) {
    cluster.submit(0, bucket);
    pass(cluster, kSecond);
  }
  cluster.submit(1, 4);
  pass(cluster, 20 * kSecond);
  std::vector<uint32_t> order;
  for (const engine::Stall& stall : cluster.node(0).stalls) {
    order.push_back(stall.bucket);
    EXPECT_EQ(stall.waited_ns, 5 * kSecond);
  }
  EXPECT_THAT(order, ElementsAre(5, 3, 2, 1));
}

struct Disagreement {
  const char* name;
  Request first, second;
  const char* said_first;
  const char* said_second;
};

Request request_of(uint8_t operation, compress::ReduceOp op, double scale, uint32_t root) {
  Request request;
  request.operation = operation;
  request.reduce_op = op;
  request.scale = scale;
  request.root = root;
  return request;
}

std::vector<Disagreement> disagreements() {
  using compress::ReduceOp;
  const Request sum = request_of(layout::kOpAllreduce, ReduceOp::kSum, 1, 0);
  return {{"reduction", sum, request_of(layout::kOpAllreduce, ReduceOp::kAverage, 1, 0), "allreduce sum",
           "allreduce average"},
          {"scale", sum, request_of(layout::kOpAllreduce, ReduceOp::kSum, 2, 0), "scale 1", "scale 2"},
          {"operation", sum, request_of(layout::kOpBroadcast, ReduceOp::kSum, 1, 0), "allreduce sum",
           "broadcast"},
          {"operation2", sum, request_of(layout::kOpBroadcast, ReduceOp::kSum, 1, 1), "allreduce sum",
           "broadcast"},
          {"root", request_of(layout::kOpBroadcast, ReduceOp::kSum, 1, 0),
           request_of(layout::kOpBroadcast, ReduceOp::kSum, 1, 1), "from rank 0", "from rank 1"}};
}

TEST(Failure, LocalRanksThatDisagreeAreBothNamed) {
  for (const Disagreement& d : disagreements()) {
    Cluster cluster(narrow(1, 2));
    cluster.add_bucket(1, bucket_of(1000));
    cluster.submit(0, 1, d.first);
    cluster.submit(1, 1, d.second);
    cluster.run_until([&] { return cluster.completed(1); }, kSecond);
    EXPECT_THAT(cluster.failure().message(),
                AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr(d.said_first),
                      HasSubstr(d.said_second), HasSubstr("\"gradients\"")))
        << d.name;
    EXPECT_EQ(cluster.failure().code(), Code::kMismatch);
    expect_all_aborted(cluster, 1);
  }
}

TEST(Failure, NodesThatDisagreeAreBothNamed) {
  for (const Disagreement& d : disagreements()) {
    for (const uint64_t elements : {uint64_t{100}, uint64_t{200'000}}) {  // without and with grants
      for (const uint32_t nodes : {2u, 3u, 4u}) {
        for (uint32_t dissenter = 0; dissenter < nodes; ++dissenter) {
          Cluster cluster(narrow(nodes, 1));
          cluster.add_bucket(1, bucket_of(elements));
          for (uint32_t r = 0; r < nodes; ++r) {
            cluster.submit(r, 1, r == dissenter ? d.second : d.first);
          }
          cluster.run_until([&] { return cluster.completed(1); }, 100 * kSecond);
          EXPECT_THAT(cluster.failure().message(), AllOf(HasSubstr(d.said_first), HasSubstr(d.said_second),
                                                         HasSubstr("node-"), HasSubstr("operation 1")))
              << d.name << ", node " << dissenter << " of " << nodes << ", " << elements << " elements";
          EXPECT_EQ(cluster.failure().code(), Code::kMismatch);
          for (uint32_t r = 0; r < nodes; ++r) {  // a root that was granted everything may be done
            EXPECT_NE(cluster.rank(r).completion(1), nullptr);
            EXPECT_NE(cluster.rank(r).session->abort_status.load(std::memory_order_acquire), 0);
          }
        }
      }
    }
  }
}

TEST(Failure, NodesThatCutOrCodeABucketDifferentlyNoticeIt) {
  for (const bool large : {false, true}) {
    Cluster cluster(narrow(2, 1));
    cluster.add_bucket_at(0, 1, bucket_of(large ? 90'000 : 500, "l8"));
    cluster.add_bucket_at(1, 1, bucket_of(large ? 90'000 : 500, "none"));
    cluster.submit_all(1);
    cluster.run_until([&] { return cluster.completed(1); }, 100 * kSecond);
    EXPECT_THAT(cluster.failure().message(), HasSubstr("layout"));
    expect_all_aborted(cluster, 1);
  }
  Cluster cluster(narrow(2, 1));
  cluster.add_bucket_at(0, 1, bucket_of(500));
  cluster.add_bucket_at(1, 1, bucket_of(501));
  cluster.submit_all(1);
  cluster.run_until([&] { return cluster.completed(1); }, 100 * kSecond);
  EXPECT_THAT(cluster.failure().message(), AllOf(HasSubstr("500 float32"), HasSubstr("501 float32")));
}

TEST(Failure, WhatTheReducerRefusesEndsTheJob) {
  Cluster cluster(narrow(2, 1));
  BucketShape integers = bucket_of(100);
  integers.dtype = compress::Dtype::kInt32;
  cluster.add_bucket(1, integers);
  cluster.submit_all(1, request_of(layout::kOpAllreduce, compress::ReduceOp::kAverage, 1, 0));
  cluster.run_until([&] { return cluster.completed(1); }, kSecond);
  EXPECT_THAT(cluster.failure().message(), HasSubstr("operation 1"));
  expect_all_aborted(cluster, 1);
}

TEST(Failure, AnAbortEndsEverythingInFlightAndEverythingAfter) {
  Cluster cluster(narrow(3, 2));
  cluster.add_bucket(1, bucket_of(500'000, "laco"));
  cluster.add_bucket(2, bucket_of(10));
  for (uint32_t step = 0; step < 3; ++step) {
    cluster.submit_all(1);
    ASSERT_TRUE(cluster.finish(1));
  }
  const std::span<const float> residual = cluster.node(1).reducers[1]->residual();
  const std::vector<float> before(residual.begin(), residual.end());
  cluster.submit_all(1);
  cluster.submit(0, 2);
  pass(cluster, 1'000'000);
  const std::string cause = "rank 7 was killed by signal 9 \xc3\xa4\xc3\xb6";
  for (uint32_t n = 0; n < 3; ++n) {
    cluster.node(n).engine->abort_job(Cluster::kJob, Status(Code::kAborted, cause));
    cluster.node(n).engine->abort_job(Cluster::kJob, Status(Code::kAborted, "another cause"));
  }
  cluster.settle();
  for (uint32_t r = 0; r < cluster.world(); ++r) {
    EXPECT_EQ(cluster.rank(r).completion(1)->status, GW_ERR_ABORTED);
    EXPECT_EQ(cluster.rank(r).session->abort_cause, cause);
    cluster.submit(r, 1);
    cluster.submit(r, 99);  // even nonsense gets its answer
  }
  EXPECT_EQ(cluster.rank(0).completion(2)->status, GW_ERR_ABORTED);
  cluster.settle();
  for (uint32_t r = 0; r < cluster.world(); ++r) {
    EXPECT_EQ(cluster.rank(r).completion(1)->status, GW_ERR_ABORTED);
    EXPECT_EQ(cluster.rank(r).completion(99)->status, GW_ERR_ABORTED);
  }
  const std::span<const float> after = cluster.node(1).reducers[1]->residual();
  EXPECT_EQ(std::vector<float>(after.begin(), after.end()), before);
  EXPECT_TRUE(cluster.failure().ok());  // whoever aborts knows the cause
  EXPECT_TRUE(cluster.node(0).engine->snapshot(1).aborted);
  EXPECT_TRUE(cluster.node(0).engine->remove_bucket(1, 1).ok());
  EXPECT_FALSE(cluster.node(0).engine->busy());
}

TEST(Failure, ALongCauseIsCutAtACharacter) {
  Cluster cluster(narrow(1, 1));
  std::string cause;
  while (cause.size() < 2000) {
    cause += "a\xe2\x82\xac";
  }
  cluster.node(0).engine->abort_job(1, Status(Code::kAborted, cause));
  const std::string told = cluster.rank(0).session->abort_cause;
  EXPECT_LT(told.size(), layout::kCauseBytes);
  EXPECT_GE(told.size(), layout::kCauseBytes - 4);
  EXPECT_LE(told.size() % 4, 1u);
  EXPECT_EQ(cause.substr(0, told.size()), told);
}

TEST(Failure, AJobCanBeRemovedAtAnyMoment) {
  for (uint64_t after = 0; after < 9'000'000; after += 450'000) {
    ClusterOptions options = narrow(3, 1);
    options.abort_on_failure = false;
    Cluster cluster(options);
    cluster.add_bucket(1, bucket_of(300'000, "l8"));
    cluster.add_bucket(2, bucket_of(50));
    cluster.submit_all(1);
    cluster.submit_all(2);
    pass(cluster, after);
    const std::weak_ptr<Region> region = cluster.node(1).results[1];
    cluster.node(1).results.clear();
    cluster.node(1).engine->remove_job(1);
    EXPECT_TRUE(region.expired());
    EXPECT_TRUE(cluster.node(1).engine->jobs().empty());
    cluster.settle();  // the others see what they see; nothing of the job is touched any more
    EXPECT_NE(cluster.rank(1).completion(1), nullptr);
  }
}

}  // namespace
}  // namespace gradwire::sim
