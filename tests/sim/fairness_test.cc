// Jobs that share engines: one that stalls or floods takes no more than its share from the others.
#include <gtest/gtest.h>

#include "tests/sim/other_job.h"

namespace gradwire::sim {
namespace {

constexpr uint64_t kBytesPerSecond = 1'000'000'000;
constexpr uint32_t kWindow = 4;
constexpr uint32_t kPayload = 70'000;
constexpr uint64_t kSegment = 65'536;    // bytes: whole blocks
constexpr uint64_t kElements = 400'000;  // of the other job's bucket
constexpr uint32_t kSteps = 10;

ClusterOptions metered(uint32_t nodes, uint32_t locals) {
  ClusterOptions options = cluster_of(nodes, locals);
  options.network.bytes_per_second = kBytesPerSecond;
  options.network.send_window = kWindow;
  return options;
}

// How long the other job takes where the cluster's job does nothing.
uint64_t alone() {
  Cluster cluster(metered(2, 2));
  OtherJob other(cluster);
  other.add_bucket(1, kElements);
  return other.run(1, kSteps);
}

TEST(Fairness, AJobThatWaitsForARankOrANodeDelaysNobody) {
  const uint64_t expected = alone();
  ASSERT_GT(expected, 0u);
  for (const uint32_t missing : {1u, 2u}) {  // one rank, or all ranks of a node: that never grants anything
    Cluster cluster(metered(2, 2));
    OtherJob other(cluster);
    other.add_bucket(1, kElements);
    for (uint32_t bucket = 1; bucket <= 40; ++bucket) {
      cluster.add_bucket(bucket, bucket_of(bucket % 2 == 0 ? 100 : 100'000));
      for (uint32_t r = 0; r + missing < 4; ++r) {
        cluster.submit(r, bucket);
      }
    }
    const uint64_t took = other.run(1, kSteps);
    EXPECT_LE(took, expected + expected / 4) << missing;
    EXPECT_TRUE(cluster.failure().ok());
    for (uint32_t bucket = 1; bucket <= 40; ++bucket) {  // and it goes on where it was
      for (uint32_t r = 4 - missing; r < 4; ++r) {
        cluster.submit(r, bucket);
      }
    }
    for (uint32_t bucket = 1; bucket <= 40; ++bucket) {
      ASSERT_TRUE(cluster.finish(bucket));
    }
  }
}

// While the cluster's job goes on with all its buckets without a pause the other job gets half of every link,
// and waits for a window of the first job's messages at every hop.
void expect_half(uint32_t buckets, uint64_t elements) {
  const uint64_t expected = alone();
  Cluster cluster(metered(2, 1));
  OtherJob other(cluster);
  other.add_bucket(1, kElements);
  for (uint32_t bucket = 1; bucket <= buckets; ++bucket) {
    cluster.add_bucket(bucket, bucket_of(elements));
    cluster.submit_all(bucket);
  }
  uint64_t again = 0;
  const uint64_t took = other.run(1, kSteps, [&] {
    for (uint32_t r = 0; r < 2; ++r) {
      std::vector<uint32_t> done;
      for (const layout::Completion& completion : cluster.rank(r).done) {
        done.push_back(completion.bucket);
      }
      cluster.rank(r).done.clear();
      for (const uint32_t bucket : done) {
        cluster.submit(r, bucket);
        ++again;
      }
    }
  });
  const uint64_t window_ns = uint64_t{kWindow} * kPayload * 1'000'000'000 / kBytesPerSecond;
  EXPECT_LE(took, 2 * expected + kSteps * 4 * window_ns);
  EXPECT_GT(again, kSteps);  // it did go on
  EXPECT_TRUE(cluster.failure().ok()) << cluster.failure().message();
}

TEST(Fairness, AFloodOfSmallOperationsLeavesOthersTheirShare) {
  expect_half(400, 100);
}

TEST(Fairness, HugeBucketsLeaveOthersTheirShare) {
  expect_half(8, 500'000);
}

// What one poll may do for a job, whatever has piled up, so that others get their turn: the bounds of poll.cc
// with the bursts of a last step.
constexpr uint64_t kMostSubmissions = 32;
constexpr uint64_t kMostSegments = 100;

TEST(Fairness, OnePollTakesABoundedNumberOfSubmissions) {
  Cluster cluster(metered(1, 1));
  OtherJob other(cluster);
  for (uint32_t bucket = 1; bucket <= 1000; ++bucket) {
    cluster.add_bucket(bucket, bucket_of(10));
    cluster.submit(0, bucket);
  }
  other.submit_all(0);
  engine::Engine& engine = *cluster.node(0).engine;
  engine.poll();
  EXPECT_LE(engine.snapshot(1).ranks[0].submissions, kMostSubmissions);
  EXPECT_TRUE(other.complete(0));
  for (uint32_t bucket = 1; bucket <= 1000; ++bucket) {
    ASSERT_TRUE(cluster.finish(bucket));
  }
}

// A job on one node sends nothing: its segments are seen when their operation is complete.
void expect_bounded_polls(uint32_t nodes, uint8_t operation) {
  SCOPED_TRACE("operation " + std::to_string(operation) + " on " + std::to_string(nodes));
  constexpr uint32_t kBuckets = 40;
  constexpr uint64_t kLarge = 12 * kSegment / sizeof(float);
  ClusterOptions options = metered(nodes, 1);
  options.network.bytes_per_second = 0;
  options.network.inline_completions = 256;  // the link never seems full
  Cluster cluster(options);
  OtherJob other(cluster, 2, 1);
  other.add_bucket(1, kLarge);
  Request request;
  request.operation = operation;
  for (uint32_t bucket = 1; bucket <= kBuckets; ++bucket) {
    cluster.add_bucket(bucket, bucket_of(kLarge));
    cluster.submit_all(bucket, request);
  }
  other.submit_all(1);
  uint32_t polls = 0;
  uint64_t before = 0;
  engine::Engine& engine = *cluster.node(0).engine;
  while (!other.complete(1) && polls < 100) {
    engine.poll();
    ++polls;
    uint64_t segments = 0;
    for (const engine::BucketSnapshot& bucket : engine.snapshot(1).buckets) {
      segments += bucket.payload_bytes / kSegment + bucket.operations * 12;
    }
    EXPECT_LE(segments - before, kMostSegments);
    before = segments;
  }
  EXPECT_LE(polls, 6u);  // a burst of 8 of its 12 segments at each of its turns
  for (uint32_t bucket = 1; bucket <= kBuckets; ++bucket) {
    ASSERT_TRUE(cluster.finish(bucket));
  }
}

TEST(Fairness, OnePollHandlesABoundedNumberOfSegmentsOfEveryKindOfOperation) {
  for (const uint8_t operation :
       {layout::kOpAllreduce, layout::kOpBroadcast, layout::kOpAllgather, layout::kOpReduceScatter}) {
    for (const uint32_t nodes : {1u, 2u}) {
      expect_bounded_polls(nodes, operation);
    }
  }
}

TEST(Fairness, ManyStallsAreToldInTurns) {
  Cluster cluster(metered(1, 2));
  for (uint32_t bucket = 1; bucket <= 300; ++bucket) {
    cluster.add_bucket(bucket, bucket_of(10));
    cluster.submit(0, bucket);
  }
  pass(cluster, 4'000'000'000);
  cluster.network().advance_to(cluster.now_ns() + 2'000'000'000);
  size_t told = 0;
  while (told < 300) {
    cluster.node(0).engine->poll();
    const size_t stalls = cluster.node(0).stalls.size();
    ASSERT_GT(stalls, told);
    EXPECT_LE(stalls - told, 64u);
    told = stalls;
  }
}

}  // namespace
}  // namespace gradwire::sim
