// What the engine tells of operations: their phase, whom they wait for, how far a job came.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "daemon/engine/message.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using engine::OperationView;
using layout::BucketPhase;
using testing::ElementsAre;
using testing::IsEmpty;

OperationView view(Cluster& cluster, uint32_t node, uint64_t sequence = 1) {
  return cluster.node(node).engine->inspect(Cluster::kJob, 1, sequence);
}

engine::BucketSnapshot snapshot(Cluster& cluster, uint32_t node) {
  return cluster.node(node).engine->snapshot(Cluster::kJob).buckets[1];
}

Request request_of(uint8_t operation, uint32_t root = 0) {
  Request request;
  request.operation = operation;
  request.root = root;
  return request;
}

TEST(Inspect, ShowsWhoHasNotSubmitted) {
  Cluster cluster(cluster_of(2, 3));
  cluster.add_bucket(1, bucket_of(100'000));
  EXPECT_EQ(snapshot(cluster, 0).phase, BucketPhase::kIdle);
  EXPECT_EQ(sentence(cluster, 0, 0), "idle");
  cluster.submit(1, 1);
  pass(cluster, kSecond);
  EXPECT_EQ(view(cluster, 0).phase, BucketPhase::kGathering);
  EXPECT_EQ(view(cluster, 0).sequence, 1u);
  EXPECT_EQ(view(cluster, 0).waits_for_node, UINT32_MAX);
  EXPECT_THAT(view(cluster, 0).missing_ranks, ElementsAre(0, 2));
  EXPECT_EQ(sentence(cluster, 0), "gathering");
  // Where nobody has submitted yet, too: another node may ask.
  EXPECT_EQ(view(cluster, 1).phase, BucketPhase::kGathering);
  EXPECT_THAT(view(cluster, 1).missing_ranks, ElementsAre(3, 4, 5));
  EXPECT_EQ(snapshot(cluster, 0).phase, BucketPhase::kGathering);
  EXPECT_EQ(snapshot(cluster, 0).missing_ranks, 2u);
  EXPECT_EQ(snapshot(cluster, 0).sequence, 1u);
  EXPECT_EQ(snapshot(cluster, 0).operation, layout::kOpAllreduce);
  EXPECT_EQ(snapshot(cluster, 1).phase, BucketPhase::kIdle);
}

TEST(Inspect, AReducerIsShownBetweenOperationsOnly) {
  Cluster cluster(cluster_of(2, 2));
  cluster.add_bucket(1, bucket_of(100'000, "l8"));
  uint64_t committed = UINT64_MAX;
  const auto look = [&](uint32_t bucket) {
    return cluster.node(0).engine->look(Cluster::kJob, bucket, [&](const compress::BucketReducer& reducer) {
      committed = reducer.stats().operations;
      return Status(reducer.residual().size() == 100'000 ? Code::kOk : Code::kInternal, "");
    });
  };
  EXPECT_TRUE(look(1).ok());
  EXPECT_EQ(committed, 0u);
  EXPECT_EQ(look(7).code(), Code::kNotFound);
  EXPECT_EQ(look(0).code(), Code::kInternal) << "what is said of the barrier's, which has no residual";
  cluster.submit(0, 1);
  pass(cluster, kSecond);
  EXPECT_TRUE(look(1).ok()) << "one that a local rank still misses has not begun";
  cluster.submit(1, 1);
  pass(cluster, kSecond);
  EXPECT_EQ(look(1).code(), Code::kUnavailable);
  EXPECT_THAT(look(1).message(), testing::HasSubstr("in flight"));
  cluster.submit(2, 1);
  cluster.submit(3, 1);
  pass(cluster, kSecond);
  EXPECT_TRUE(look(1).ok());
  EXPECT_EQ(committed, 1u);
}

TEST(Inspect, ShowsThatTheRightNeighbourHasNotStarted) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, bucket_of(100'000));
  cluster.submit(0, 1);
  pass(cluster, 6 * kSecond);
  EXPECT_EQ(view(cluster, 0).phase, BucketPhase::kGranting);
  EXPECT_EQ(view(cluster, 0).waits_for_node, 1u);
  EXPECT_EQ(sentence(cluster, 0), "waiting for node node-1 (index 1) to start");
  EXPECT_EQ(snapshot(cluster, 0).phase, BucketPhase::kGranting);
  EXPECT_EQ(snapshot(cluster, 0).waits_for_node, 1u);
  ASSERT_EQ(cluster.node(0).stalls.size(), 1u);
  EXPECT_EQ(cluster.node(0).stalls[0].view.phase, BucketPhase::kGranting);
  EXPECT_THAT(cluster.node(0).stalls[0].view.missing_ranks, IsEmpty());
  cluster.submit(1, 1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  EXPECT_EQ(view(cluster, 0).phase, BucketPhase::kIdle);
  EXPECT_EQ(snapshot(cluster, 0).waits_for_node, UINT32_MAX);
}

TEST(Inspect, ShowsTheHopAndTheNeighbourThatAreWaitedFor) {
  Cluster cluster(cluster_of(3, 1));
  cluster.add_bucket(1, bucket_of(100'000));
  cluster.network().cut("node-0", "node-1");
  cluster.submit_all(1);
  pass(cluster, 6 * kSecond);
  EXPECT_EQ(sentence(cluster, 0), "waiting for node node-1 (index 1) to start");
  EXPECT_EQ(view(cluster, 1).phase, BucketPhase::kReducing);
  EXPECT_EQ(view(cluster, 1).hop, 0u);
  EXPECT_EQ(view(cluster, 1).hops, 4u);
  EXPECT_EQ(view(cluster, 1).waits_for_node, 0u);
  EXPECT_EQ(sentence(cluster, 1), "reducing, hop 1 of 4, waiting for node node-0 (index 0)");
  // Node 1's own chunk has come to node 2, what node 1 should pass on has not.
  EXPECT_EQ(sentence(cluster, 2), "reducing, hop 2 of 4, waiting for node node-1 (index 1)");
  EXPECT_EQ(snapshot(cluster, 2).hop, 1u);
  EXPECT_EQ(snapshot(cluster, 2).hops, 4u);
  EXPECT_EQ(cluster.node(2).stalls[0].view.hop, 1u);
  EXPECT_EQ(engine::describe(view(cluster, 2), {}), "reducing, hop 2 of 4, waiting for node 1");
  cluster.network().heal("node-0", "node-1");
  ASSERT_TRUE(cluster.finish(1));
}

TEST(Inspect, ShowsThatFinishedSumsAreMissing) {
  Cluster cluster(cluster_of(3, 1));
  cluster.add_bucket(1, bucket_of(100'000));
  cluster.network().set_filter([](transport::SimMessage& message) {
    engine::MessageHeader header;
    std::memcpy(&header, message.header.data(), sizeof(header));
    const bool sum = header.kind == static_cast<uint8_t>(engine::MessageKind::kGather);
    return sum && message.from == "node-2" ? 0 : 1;
  });
  cluster.submit_all(1);
  pass(cluster, 6 * kSecond);
  EXPECT_EQ(sentence(cluster, 0), "distributing, hop 3 of 4, waiting for node node-2 (index 2)");
  EXPECT_EQ(view(cluster, 0).phase, BucketPhase::kDistributing);
  EXPECT_EQ(sentence(cluster, 1), "distributing, hop 4 of 4, waiting for node node-0 (index 0)");
}

TEST(Inspect, CountsABroadcastsHopsFromItsRoot) {
  Cluster cluster(cluster_of(4, 1));
  cluster.add_bucket(1, bucket_of(100'000));
  cluster.network().cut("node-3", "node-0");
  cluster.submit_all(1, request_of(layout::kOpBroadcast, 2));
  pass(cluster, 6 * kSecond);
  EXPECT_EQ(sentence(cluster, 3), "complete, its last messages to node node-0 (index 0) under way");
  EXPECT_EQ(sentence(cluster, 0), "distributing, hop 2 of 3, waiting for node node-3 (index 3)");
  EXPECT_EQ(sentence(cluster, 1), "distributing, hop 3 of 3, waiting for node node-0 (index 0)");
  EXPECT_EQ(snapshot(cluster, 1).operation, layout::kOpBroadcast);
  cluster.network().heal("node-3", "node-0");
  ASSERT_TRUE(cluster.finish(1));
}

// Three nodes in the midst of an operation that all have started; what node 0 still has to send is stuck.
struct Stuck {
  explicit Stuck(uint8_t operation) : cluster(options()) {
    cluster.add_bucket(1, bucket_of(600'000));
    cluster.submit_all(1, request_of(operation));
    pass(cluster, 200'000);
    cluster.network().cut("node-0", "node-1");
    pass(cluster, 6 * kSecond);
  }
  ~Stuck() {
    cluster.network().heal("node-0", "node-1");
    EXPECT_TRUE(cluster.finish(1));
  }
  static ClusterOptions options() {
    ClusterOptions options = cluster_of(3, 1);
    options.network.send_window = 2;
    options.network.bytes_per_second = 100'000'000;
    return options;
  }
  Cluster cluster;
};

TEST(Inspect, ShowsThatAReduceScatterCannotSendOn) {
  Stuck stuck(layout::kOpReduceScatter);
  EXPECT_EQ(sentence(stuck.cluster, 0), "reducing, hop 2 of 2, waiting for node node-1 (index 1)");
  EXPECT_EQ(sentence(stuck.cluster, 1), "reducing, hop 1 of 2, waiting for node node-0 (index 0)");
  EXPECT_EQ(sentence(stuck.cluster, 2), "reducing, hop 2 of 2, waiting for node node-1 (index 1)");
  EXPECT_EQ(snapshot(stuck.cluster, 0).phase, BucketPhase::kReducing);
  EXPECT_EQ(snapshot(stuck.cluster, 0).waits_for_node, 1u);
}

TEST(Inspect, ShowsThatAnAllgatherCannotSendOn) {
  Stuck stuck(layout::kOpAllgather);
  EXPECT_EQ(sentence(stuck.cluster, 0), "distributing, hop 2 of 2, waiting for node node-1 (index 1)");
  EXPECT_EQ(sentence(stuck.cluster, 1), "distributing, hop 1 of 2, waiting for node node-0 (index 0)");
  EXPECT_EQ(sentence(stuck.cluster, 2), "distributing, hop 2 of 2, waiting for node node-1 (index 1)");
}

TEST(Inspect, ShowsThatABroadcastsRootCannotSendOn) {
  Stuck stuck(layout::kOpBroadcast);
  EXPECT_EQ(sentence(stuck.cluster, 0), "distributing, hop 1 of 2, waiting for node node-1 (index 1)");
  EXPECT_EQ(sentence(stuck.cluster, 1), "distributing, hop 1 of 2, waiting for node node-0 (index 0)");
  EXPECT_EQ(sentence(stuck.cluster, 2), "distributing, hop 2 of 2, waiting for node node-1 (index 1)");
}

TEST(Inspect, ABroadcastsOtherNodesWaitForWhereItComesFrom) {
  Cluster cluster(cluster_of(3, 1));
  cluster.add_bucket(1, bucket_of(100'000));
  const Request request = request_of(layout::kOpBroadcast);
  cluster.submit(1, 1, request);  // neither neighbour has started
  pass(cluster, kSecond);
  EXPECT_EQ(sentence(cluster, 1), "distributing, hop 1 of 2, waiting for node node-0 (index 0)");
  cluster.submit(0, 1, request);
  cluster.submit(2, 1, request);
  ASSERT_TRUE(cluster.finish(1));
}

TEST(Inspect, ShowsWhatHoldsUpAnOperationWhoseRanksAreAllThere) {
  Cluster cluster(cluster_of(3, 1));
  cluster.add_bucket(1, bucket_of(100'000));
  cluster.network().cut("node-0", "node-1");
  const Request request = request_of(layout::kOpBroadcast, 2);
  cluster.submit_all(1, request);
  pass(cluster, kSecond);
  ASSERT_NE(cluster.rank(0).completion(1), nullptr);  // but node 1 has not got it from here
  cluster.submit(0, 1, request);
  pass(cluster, kSecond);
  EXPECT_EQ(view(cluster, 0, 2).phase, BucketPhase::kDone);
  EXPECT_EQ(view(cluster, 0, 2).sequence, 1u);
  EXPECT_EQ(sentence(cluster, 0, 2), "complete, its last messages to node node-1 (index 1) under way");
  EXPECT_EQ(view(cluster, 0, 1).sequence, 1u);
  cluster.network().heal("node-0", "node-1");
  ASSERT_TRUE(cluster.run_until([&] { return cluster.rank(1).completion(1) != nullptr; }));
  cluster.submit(1, 1, request);
  cluster.submit(2, 1, request);
  ASSERT_TRUE(cluster.finish(1));
}

TEST(Inspect, ListsWhatIsInFlight) {
  Cluster cluster(cluster_of(3, 1));
  for (uint32_t bucket = 3; bucket >= 1; --bucket) {
    cluster.add_bucket(bucket, bucket_of(100'000));
  }
  const engine::Engine& engine = *cluster.node(0).engine;
  EXPECT_THAT(engine.in_flight(), IsEmpty());
  cluster.network().cut("node-0", "node-1");
  cluster.submit(0, 3);
  const Request request = request_of(layout::kOpBroadcast, 2);
  cluster.submit_all(1, request);
  pass(cluster, kSecond);
  ASSERT_NE(cluster.rank(0).completion(1), nullptr);
  cluster.submit(0, 1, request);
  pass(cluster, kSecond);
  const auto of = [](uint32_t bucket, uint64_t sequence) {
    return engine::OperationId{Cluster::kJob, bucket, sequence};
  };
  // The broadcast's first operation still has messages under way, its second waits behind it.
  EXPECT_THAT(engine.in_flight(), ElementsAre(of(1, 1), of(1, 2), of(3, 1)));
  EXPECT_THAT(cluster.node(2).engine->in_flight(), IsEmpty());
  cluster.node(0).engine->abort_job(Cluster::kJob, Status(Code::kAborted, "rank 1 died"));
  EXPECT_THAT(engine.in_flight(), IsEmpty());
}

TEST(Inspect, ShowsTheBeginningOfALongName) {
  Cluster cluster(cluster_of(1, 1));
  BucketShape shape = bucket_of(10);
  shape.name = std::string(126, 'n') + "\xc3\xa9" + std::string(4000, 'n');  // a character of two bytes
  cluster.add_bucket(1, shape);
  ASSERT_NE(snapshot(cluster, 0).name, nullptr);
  EXPECT_EQ(*snapshot(cluster, 0).name, std::string(126, 'n'));
}

TEST(Inspect, KnowsNothingOfWhatIsNotThere) {
  Cluster cluster(cluster_of(1, 1));
  EXPECT_EQ(cluster.node(0).engine->inspect(7, 1, 1).phase, BucketPhase::kIdle);
  EXPECT_EQ(cluster.node(0).engine->inspect(1, 99, 1).phase, BucketPhase::kIdle);
  EXPECT_THAT(cluster.node(0).engine->completed(7), IsEmpty());
  EXPECT_THAT(cluster.node(0).engine->completed(1), IsEmpty());
}

TEST(Inspect, SaysHowFarAJobCameUntilItIsRemoved) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, bucket_of(200'000));
  cluster.add_bucket(2, bucket_of(10));
  cluster.add_bucket(3, bucket_of(10));
  const auto came = [&](uint32_t node) {
    std::vector<std::pair<uint32_t, uint64_t>> entries;
    for (const engine::BucketSequence& entry : cluster.node(node).engine->completed(Cluster::kJob)) {
      entries.emplace_back(entry.bucket, entry.sequence);
    }
    return entries;
  };
  for (int step = 0; step < 3; ++step) {
    cluster.submit_all(1);
    ASSERT_TRUE(cluster.finish(1));
  }
  cluster.submit_all(2);
  ASSERT_TRUE(cluster.finish(2));
  cluster.submit_all(1);
  pass(cluster, 30'000);
  ASSERT_EQ(cluster.rank(0).completion(1), nullptr);
  for (uint32_t n = 0; n < 2; ++n) {
    cluster.node(n).engine->abort_job(Cluster::kJob, Status(Code::kAborted, "rank 1 died"));
    EXPECT_THAT(came(n), ElementsAre(std::pair(1u, 3u), std::pair(2u, 1u)));
  }
  EXPECT_EQ(view(cluster, 0, 5).phase, BucketPhase::kIdle);
  EXPECT_EQ(snapshot(cluster, 0).phase, BucketPhase::kIdle);
  EXPECT_EQ(cluster.node(0).engine->snapshot(1).ranks[0].submissions, 5u);
  EXPECT_EQ(cluster.node(0).engine->snapshot(1).ranks[0].late_count, 0u);  // alone on its node
  cluster.node(0).engine->remove_job(Cluster::kJob);
  EXPECT_THAT(came(0), IsEmpty());
}

}  // namespace
}  // namespace gradwire::sim
