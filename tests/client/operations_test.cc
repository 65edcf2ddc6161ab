// The operations on buckets beside sum and average: their results, shards and refusals.
#include <numeric>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

template <typename Element>
Element* gradient_of(gw_bucket* bucket) {
  return static_cast<Element*>(gw_bucket_gradient(bucket));
}
template <typename Element>
const Element* result_of(gw_bucket* bucket) {
  return static_cast<const Element*>(gw_bucket_result(bucket));
}

gw_bucket* exact_bucket(gw_job* job, uint64_t elements, gw_dtype dtype) {
  const gw_layer layer{"weight", elements};
  gw_bucket* bucket = nullptr;
  const std::string name = "b" + std::to_string(int{dtype});
  EXPECT_EQ(gw_bucket_create(job, name.c_str(), dtype, &layer, 1, 0, &bucket), GW_OK) << gw_last_error();
  return bucket;
}

gw_status finish(gw_bucket* bucket, gw_status submitted) {
  return submitted != GW_OK ? submitted : gw_wait(bucket, 10'000, nullptr);
}

template <typename Element>
void expect_every_reduction(gw_job* job, int32_t rank, gw_dtype dtype) {
  gw_bucket* bucket = exact_bucket(job, 6, dtype);
  std::fill_n(gradient_of<Element>(bucket), 6, static_cast<Element>(rank + 2));  // 2 and 3
  const std::vector<std::pair<gw_reduce_op, Element>> expected{
      {GW_SUM, 5}, {GW_MIN, 2}, {GW_MAX, 3}, {GW_PRODUCT, 6}};
  for (const auto& [op, value] : expected) {
    ASSERT_EQ(finish(bucket, gw_allreduce(bucket, op)), GW_OK) << gw_last_error();
    EXPECT_EQ(result_of<Element>(bucket)[5], value);
    ASSERT_EQ(finish(bucket, gw_reduce_scatter(bucket, op)), GW_OK) << gw_last_error();
    uint64_t first = 0;
    uint64_t elements = 0;
    ASSERT_EQ(gw_bucket_shard(bucket, rank, &first, &elements), GW_OK);
    EXPECT_EQ(result_of<Element>(bucket)[first + elements - 1], value);
  }
  if (dtype >= GW_INT32) {
    expect({gw_allreduce(bucket, GW_AVERAGE), gw_last_error()}, GW_ERR_INVALID, "use GW_SUM");
    expect({gw_reduce_scatter(bucket, GW_AVERAGE), gw_last_error()}, GW_ERR_INVALID, "use GW_SUM");
  }
}

TEST(Operations, EveryReductionOfEveryNativeType) {
  FakeDaemon daemon;
  as_ranks(2, [&](int32_t rank) {
    gw_job* job = join_or_fail(daemon, rank, 2);
    expect_every_reduction<float>(job, rank, GW_FLOAT32);
    expect_every_reduction<double>(job, rank, GW_FLOAT64);
    expect_every_reduction<int32_t>(job, rank, GW_INT32);
    expect_every_reduction<int64_t>(job, rank, GW_INT64);
    expect_every_reduction<uint8_t>(job, rank, GW_UINT8);
    EXPECT_EQ(gw_leave(job), GW_OK);
  });
}

TEST(Operations, SixteenBitFloatsAreOperatedOnToo) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  for (const gw_dtype dtype : {GW_FLOAT16, GW_BFLOAT16}) {
    gw_bucket* bucket = exact_bucket(job, 5, dtype);
    EXPECT_EQ(gw_bucket_bytes(bucket), 10u);
    gradient_of<uint16_t>(bucket)[4] = 0x3c01;
    for (const gw_reduce_op op : {GW_SUM, GW_AVERAGE, GW_MIN, GW_MAX, GW_PRODUCT}) {
      ASSERT_EQ(finish(bucket, gw_allreduce(bucket, op)), GW_OK) << gw_last_error();
      EXPECT_EQ(result_of<uint16_t>(bucket)[4], 0x3c01);
    }
  }
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Operations, AllgatherPutsEveryRanksShardInItsPlace) {
  FakeDaemon daemon;
  constexpr int32_t kWorld = 3;
  as_ranks(kWorld, [&](int32_t rank) {
    gw_job* job = join_or_fail(daemon, rank, kWorld);
    gw_bucket* bucket = exact_bucket(job, 12, GW_INT64);
    uint64_t first = 0;
    uint64_t elements = 0;
    ASSERT_EQ(gw_bucket_shard(bucket, rank, &first, &elements), GW_OK) << gw_last_error();
    EXPECT_EQ(first, static_cast<uint64_t>(4 * rank));
    EXPECT_EQ(elements, 4u);
    auto* gradient = gradient_of<int64_t>(bucket);
    std::fill_n(gradient, 12, -1);
    std::iota(gradient + first, gradient + first + elements, static_cast<int64_t>(first));
    ASSERT_EQ(finish(bucket, gw_allgather(bucket)), GW_OK) << gw_last_error();
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(result_of<int64_t>(bucket)[i], i);
    }
    EXPECT_EQ(gw_leave(job), GW_OK);
  });
}

TEST(Operations, ABucketThatTheWorldDoesNotDivideHasNoShards) {
  FakeDaemon daemon;
  as_ranks(2, [&](int32_t rank) {
    gw_job* job = join_or_fail(daemon, rank, 2);
    gw_bucket* odd = exact_bucket(job, 7, GW_FLOAT32);
    uint64_t first = 0;
    uint64_t elements = 0;
    expect({gw_bucket_shard(odd, 0, &first, &elements), gw_last_error()}, GW_ERR_INVALID,
           "pad the last layer by 1");
    expect({gw_allgather(odd), gw_last_error()}, GW_ERR_INVALID, "7 elements");
    expect({gw_reduce_scatter(odd, GW_SUM), gw_last_error()}, GW_ERR_INVALID, "2 ranks");
    gw_bucket* even = exact_bucket(job, 8, GW_FLOAT64);
    EXPECT_EQ(gw_bucket_shard(even, 2, &first, &elements), GW_ERR_NOT_FOUND);
    EXPECT_EQ(gw_bucket_shard(even, -1, &first, &elements), GW_ERR_NOT_FOUND);
    EXPECT_EQ(gw_bucket_shard(even, 0, nullptr, &elements), GW_ERR_INVALID);
    EXPECT_EQ(gw_reduce_scatter(even, 5), GW_ERR_INVALID);
    EXPECT_EQ(gw_leave(job), GW_OK);
  });
}

TEST(Operations, AFlushIsAnAllreduceWithItsFlag) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  gradient_of<float>(bucket)[7] = 1.5F;
  EXPECT_EQ(finish(bucket, gw_allreduce(bucket, GW_SUM)), GW_OK) << gw_last_error();
  EXPECT_EQ(finish(bucket, gw_flush(bucket, GW_AVERAGE)), GW_OK) << gw_last_error();
  EXPECT_EQ(result_of<float>(bucket)[7], 1.5F);
  EXPECT_EQ(finish(bucket, gw_flush_scaled(bucket, GW_SUM, 1024)), GW_OK) << gw_last_error();
  EXPECT_EQ(finish(bucket, gw_broadcast(bucket, 0)), GW_OK) << gw_last_error();
  EXPECT_EQ(daemon.submission_flags(), (std::vector<uint8_t>{0, 1, 1, 0}));
  expect({gw_flush(bucket, GW_MAX), gw_last_error()}, GW_ERR_UNSUPPORTED, "without GW_BUCKET_GRADIENT");
  expect({gw_flush(bucket, 9), gw_last_error()}, GW_ERR_INVALID, "reduce operation 9");
  expect({gw_flush_scaled(bucket, GW_SUM, 0), gw_last_error()}, GW_ERR_INVALID,
         "the scale 0 is not from 2^-60");
  gw_bucket* exact = exact_bucket(job, 6, GW_INT32);
  EXPECT_EQ(finish(exact, gw_flush(exact, GW_MAX)), GW_OK) << gw_last_error();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Operations, AGradientBucketReducesBySumAndAverageOnly) {
  FakeDaemon daemon;  // whose policy compresses nothing: the rule does not hang on it
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  for (const gw_reduce_op op : {GW_MIN, GW_MAX, GW_PRODUCT}) {
    expect({gw_allreduce(bucket, op), gw_last_error()}, GW_ERR_UNSUPPORTED, "without GW_BUCKET_GRADIENT");
    EXPECT_EQ(finish(bucket, gw_reduce_scatter(bucket, op)), GW_OK) << gw_last_error();
  }
  EXPECT_EQ(finish(bucket, gw_allreduce(bucket, GW_AVERAGE)), GW_OK) << gw_last_error();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

}  // namespace
}  // namespace gradwire::client
