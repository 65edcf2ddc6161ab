// Buckets and ranks come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/include/gradwire/gradwire.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Membership, OtherNodesMayUseABucketBeforeThisOneKnowsIt) {
  for (const uint64_t elements : {uint64_t{60}, uint64_t{100'000}}) {
    Cluster cluster(cluster_of(4, 1));
    for (const uint32_t n : {0u, 1u, 3u}) {
      cluster.add_bucket_at(n, 1, bucket_of(elements));
      cluster.rank(n).gradients[1]->as<float>()[elements - 1] = 1;
      cluster.submit(n, 1);
    }
    pass(cluster, kSecond);
    EXPECT_EQ(cluster.node(2).engine->snapshot(1).buckets.size(), 1u);  // the barrier
    cluster.add_bucket_at(2, 1, bucket_of(elements));
    cluster.rank(2).gradients[1]->as<float>()[elements - 1] = 1;
    cluster.submit(2, 1);
    ASSERT_TRUE(cluster.finish(1));
    EXPECT_EQ(cluster.node(2).results[1]->as<float>()[elements - 1], 4.0f);
  }
}

TEST(Membership, BucketsAreRemovedWhenNothingIsInFlight) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, bucket_of(200'000));
  cluster.submit_all(1);
  pass(cluster, 50'000);
  EXPECT_EQ(cluster.node(0).engine->remove_bucket(1, 1).code(), Code::kUnavailable);
  ASSERT_TRUE(cluster.finish(1));
  const std::weak_ptr<Region> region = cluster.node(0).results[1];
  cluster.node(0).results.clear();
  EXPECT_TRUE(cluster.node(0).engine->remove_bucket(1, 1).ok());
  EXPECT_TRUE(cluster.node(1).engine->remove_bucket(1, 1).ok());
  EXPECT_EQ(cluster.node(0).engine->remove_bucket(1, 1).code(), Code::kNotFound);
  EXPECT_EQ(cluster.node(0).engine->remove_bucket(1, 0).code(), Code::kNotFound);
  cluster.settle();
  cluster.rank(0).gradients.clear();
  EXPECT_TRUE(region.expired());
  EXPECT_TRUE(cluster.failure().ok());
  cluster.add_bucket(2, bucket_of(10));
  cluster.submit_all(2);
  EXPECT_TRUE(cluster.finish(2));
}

TEST(Membership, ABucketRemovedByOneNodeStillServesItsNeighbours) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ClusterOptions options = cluster_of(4, 1);
    options.network.seed = seed;
    options.network.jitter_ns = 500'000;
    options.network.late_completions = 256;
    options.network.inline_completions = 0;
    options.network.send_window = 1;
    Cluster cluster(options);
    for (uint32_t bucket = 1; bucket <= 6; ++bucket) {
      cluster.add_bucket(bucket, bucket_of(100'000));
      cluster.submit_all(bucket);
    }
    std::vector<uint32_t> removed(4, 0);
    cluster.run_until([&] {
      for (uint32_t n = 0; n < 4; ++n) {
        for (uint32_t bucket = 1; bucket <= 6; ++bucket) {
          if (cluster.rank(n).completion(bucket) != nullptr && (removed[n] & (1u << bucket)) == 0) {
            EXPECT_TRUE(cluster.node(n).engine->remove_bucket(1, bucket).ok());
            removed[n] |= 1u << bucket;
          }
        }
      }
      return std::all_of(removed.begin(), removed.end(), [](uint32_t r) { return r == 0x7e; });
    });
    EXPECT_TRUE(cluster.failure().ok()) << cluster.failure().message();
    for (const uint32_t r : removed) {
      EXPECT_EQ(r, 0x7eu);
    }
    cluster.settle();
    EXPECT_EQ(cluster.node(0).engine->snapshot(1).buckets.size(), 1u);
  }
}

TEST(Membership, RanksThatHaveDoneTheirPartMayLeave) {
  Cluster cluster(cluster_of(2, 2));
  cluster.add_bucket(1, bucket_of(1000));
  cluster.add_bucket(2, bucket_of(1000));
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.submit_all(1);  // leaving with an operation in flight
  auto last = cluster.node(0).engine->leave_rank(1, 1);
  ASSERT_TRUE(last.ok());
  ASSERT_EQ(last->size(), 3u);
  for (const engine::BucketSequence& entry : *last) {
    EXPECT_EQ(entry.sequence, entry.bucket == 1 ? 2u : 0u);
  }
  cluster.node(1).engine->note_rank_left(1, 1, *last);
  ASSERT_TRUE(cluster.finish(1));
  EXPECT_TRUE(cluster.failure().ok());
  EXPECT_EQ(cluster.node(0).engine->leave_rank(1, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(cluster.node(0).engine->leave_rank(1, 2).status().code(), Code::kNotFound);
  EXPECT_TRUE(cluster.node(0).engine->snapshot(1).ranks[1].left);
}

TEST(Membership, AnOperationThatMissesARankWhichLeftFailsAndNamesIt) {
  for (const bool before : {false, true}) {  // the others submit before or after it has left
    for (const uint32_t node : {0u, 1u}) {   // on its own node or on the other one
      Cluster cluster(cluster_of(2, 2));
      cluster.add_bucket(1, bucket_of(1000));
      const uint32_t other = node == 0 ? 1 : 2;
      const auto leave = [&] {
        auto last = cluster.node(0).engine->leave_rank(1, 0);
        ASSERT_TRUE(last.ok());
        cluster.node(1).engine->note_rank_left(1, 0, *last);
      };
      if (before) {
        cluster.submit(other, 1);
        cluster.settle();
        leave();
      } else {
        leave();
        cluster.submit(other, 1);
      }
      cluster.run_until([&] { return !cluster.failure().ok(); }, kSecond);
      EXPECT_THAT(cluster.failure().message(),
                  AllOf(HasSubstr("rank 0"), HasSubstr("left"), HasSubstr("gradients")));
      cluster.settle();
      EXPECT_EQ(cluster.rank(other).completion(1)->status, GW_ERR_ABORTED);
    }
  }
}

TEST(Membership, RefusesJobsAndBucketsThatMakeNoSense) {
  Cluster cluster(cluster_of(2, 1));
  engine::Engine& engine = *cluster.node(0).engine;
  engine::JobSpec empty;
  empty.id = 9;
  EXPECT_EQ(engine.add_job(empty).code(), Code::kInvalidArgument);
  engine::JobSpec twin;
  twin.id = 9;
  twin.key[0] = std::byte{0x40};
  for (size_t i = 0; i < 16; ++i) {
    twin.key[i] = cluster.key()[i];
  }
  twin.rank_node = {0};
  engine::LocalRank rank;
  rank.session = cluster.rank(0).session;
  twin.local_ranks.push_back(rank);
  EXPECT_EQ(engine.add_job(twin).code(), Code::kAlreadyExists);
  twin.key[0] = std::byte{1};
  twin.id = 1;
  EXPECT_EQ(engine.add_job(twin).code(), Code::kAlreadyExists);
  twin.id = 9;
  twin.rank_node = {1};
  EXPECT_EQ(engine.add_job(twin).code(), Code::kInvalidArgument);
  twin.nodes = 2;
  twin.rank_node = {0, 1};
  EXPECT_FALSE(engine.add_job(twin).ok());  // no addresses

  engine::BucketSpec bucket;
  bucket.job = 77;
  bucket.bucket = 1;
  EXPECT_EQ(engine.add_bucket(std::move(bucket)).code(), Code::kNotFound);
  bucket = engine::BucketSpec{};
  bucket.job = 1;
  EXPECT_EQ(engine.add_bucket(std::move(bucket)).code(), Code::kInvalidArgument);  // bucket 0
  bucket = engine::BucketSpec{};
  bucket.job = 1;
  bucket.bucket = 3;
  EXPECT_EQ(engine.add_bucket(std::move(bucket)).code(), Code::kInvalidArgument);  // no reducer
  compress::BucketShape shape;
  shape.layers.push_back({"layer", 10});
  shape.nodes = 3;
  shape.max_message_bytes = 70'000;
  bucket = engine::BucketSpec{};
  bucket.job = 1;
  bucket.bucket = 3;
  bucket.elements = 10;
  bucket.reducer = std::move(compress::make_exact_reducer(shape, compress::Dtype::kFloat32)).value();
  EXPECT_EQ(engine.add_bucket(std::move(bucket)).code(), Code::kInvalidArgument);  // another ring's
  EXPECT_EQ(engine.snapshot(77).id, 0u);
  EXPECT_TRUE(engine.inspect(77, 1, 1).missing_ranks.empty());
  engine.abort_job(77, Status(Code::kAborted, "nobody"));
  engine.remove_job(77);
  engine.note_rank_left(77, 0, {});
}

}  // namespace
}  // namespace gradwire::sim
