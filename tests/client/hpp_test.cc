#include <gradwire/gradwire.hpp>

#include "tests/client/client_fixture.h"

namespace gradwire {
namespace {

TEST(CppHeader, OwnersJoinReduceAndLeave) {
  client::FakeDaemon daemon;
  Job job;
  JoinOptions options = client::cpp_options_for(daemon);
  options.wait_ms = 1000;
  options.fresh = true;
  const Outcome joined = job.join(options);
  ASSERT_TRUE(joined.ok()) << joined.message();
  {
    Bucket bucket;
    const Outcome created =
        job.create_bucket("b", GW_FLOAT32, {{"w", 8}, {"b", 2}}, GW_BUCKET_GRADIENT, &bucket);
    ASSERT_TRUE(created) << created.message();
    EXPECT_EQ(bucket.elements(), 10u);
    EXPECT_EQ(bucket.codec(), "none");
    bucket.gradient<float>()[9] = 3.5f;
    ASSERT_TRUE(bucket.allreduce(GW_SUM));
    EXPECT_EQ(bucket.allreduce(GW_SUM).status(), GW_ERR_BUSY);
    ASSERT_TRUE(bucket.wait(5000));
    EXPECT_EQ(bucket.result<float>()[9], 3.5f);
    bucket.gradient<float>()[9] = 2.5f;
    ASSERT_TRUE(bucket.flush(GW_SUM, 2.0));
    ASSERT_TRUE(bucket.wait(5000));
    EXPECT_EQ(bucket.result<float>()[9], 2.5f);
    ASSERT_TRUE(bucket.allgather());
    ASSERT_TRUE(bucket.wait(5000));
    bucket.gradient<float>()[9] = 4.5f;
    ASSERT_TRUE(bucket.reduce_scatter(GW_MAX));
    ASSERT_TRUE(bucket.wait(5000));
    EXPECT_EQ(bucket.result<float>()[9], 4.5f);
    uint64_t first = 1;
    uint64_t elements = 0;
    ASSERT_TRUE(bucket.shard(0, &first, &elements));
    EXPECT_EQ(first, 0u);
    EXPECT_EQ(elements, 10u);
    EXPECT_EQ(bucket.shard(1, &first, &elements).status(), GW_ERR_NOT_FOUND);
    Bucket moved = std::move(bucket);
    EXPECT_EQ(moved.bytes(), 40u);
  }
  EXPECT_EQ(job.epoch(), 1u);
  gw_progress progress{};
  EXPECT_EQ(job.previous_epoch("b", &progress).status(), GW_ERR_NOT_FOUND);
  gw_traffic traffic{};
  ASSERT_TRUE(job.traffic(&traffic));
  EXPECT_EQ(traffic.operations, 2u);
  ASSERT_TRUE(job.barrier(5000));
  ASSERT_TRUE(job.leave());
  EXPECT_EQ(job.rank(), -1);
}

TEST(CppHeader, AFailureCarriesItsSentence) {
  Job job;
  JoinOptions options;
  options.socket = "/nonexistent/s";
  options.rank = 0;
  options.world = 1;
  const Outcome joined = job.join(options);
  EXPECT_EQ(joined.status(), GW_ERR_UNAVAILABLE);
  EXPECT_NE(joined.message().find("/nonexistent/s"), std::string::npos);
}

}  // namespace
}  // namespace gradwire
