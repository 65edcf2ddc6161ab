#include <gradwire/gradwire.hpp>

#include "tests/client/client_fixture.h"

namespace gradwire {
namespace {

TEST(CppHeader, OwnersJoinReduceAndLeave) {
  client::FakeDaemon daemon;
  Job job;
  JoinOptions options;
  options.socket = daemon.socket_path();
  options.rank = 0;
  options.world = 1;
  options.rendezvous = "";
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
    Bucket moved = std::move(bucket);
    EXPECT_EQ(moved.bytes(), 40u);
  }
  gw_traffic traffic{};
  ASSERT_TRUE(job.traffic(&traffic));
  EXPECT_EQ(traffic.operations, 1u);
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
