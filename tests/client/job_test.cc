#include <chrono>
#include <cstdlib>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

float* gradient_of(gw_bucket* bucket) {
  return static_cast<float*>(gw_bucket_gradient(bucket));
}
const float* result_of(gw_bucket* bucket) {
  return static_cast<const float*>(gw_bucket_result(bucket));
}

std::string numbered(uint64_t i) {
  std::string name = std::to_string(i);
  return name.insert(0, 1, 'b');
}

TEST(Job, RanksAverageTheirGradients) {
  FakeDaemon daemon;
  constexpr int32_t kWorld = 3;
  as_ranks(kWorld, [&](int32_t rank) {
    gw_job* job = join_or_fail(daemon, rank, kWorld);
    EXPECT_EQ(gw_rank(job), rank);
    EXPECT_EQ(gw_world(job), kWorld);
    EXPECT_EQ(gw_local_ranks(job), kWorld);
    gw_bucket* bucket = bucket_or_fail(job, "b", 1000);
    EXPECT_EQ(gw_bucket_elements(bucket), 1000u);
    EXPECT_EQ(gw_bucket_bytes(bucket), 4000u);
    EXPECT_STREQ(gw_bucket_codec(bucket), "none");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(gw_bucket_gradient(bucket)) % 64, 0u);
    for (int step = 1; step <= 50; ++step) {
      for (int i = 0; i < 1000; ++i) {
        gradient_of(bucket)[i] = static_cast<float>(step * (rank + 1) + i);
      }
      ASSERT_EQ(gw_allreduce(bucket, GW_AVERAGE), GW_OK) << gw_last_error();
      uint32_t flags = 77;
      ASSERT_EQ(gw_wait(bucket, -1, &flags), GW_OK) << gw_last_error();
      EXPECT_EQ(flags, 0u);
      ASSERT_EQ(result_of(bucket)[999], static_cast<float>(step * 2 + 999));
    }
    EXPECT_EQ(gw_barrier(job, 5000), GW_OK) << gw_last_error();
    EXPECT_EQ(gw_bucket_destroy(bucket), GW_OK) << gw_last_error();
    EXPECT_EQ(gw_barrier(job, 5000), GW_OK) << gw_last_error();
    EXPECT_EQ(gw_leave(job), GW_OK) << gw_last_error();
  });
}

TEST(Job, TheJoinCarriesWhoThisRankIs) {
  FakeDaemon daemon;
  gw_join_options options = options_for(daemon);
  options.run_id = "run-7";
  options.rendezvous = "host:1234";
  gw_job* job = nullptr;
  ASSERT_EQ(gw_join(&options, &job), GW_OK) << gw_last_error();
  const auto join = daemon.last_join();
  EXPECT_EQ(join["protocol"], 2);
  EXPECT_EQ(join["layout"], 2);
  EXPECT_EQ(join["version"], gw_version());
  EXPECT_EQ(join["job"], "test");
  EXPECT_EQ(join["run_id"], "run-7");
  EXPECT_EQ(join["rank"], 0);
  EXPECT_EQ(join["world"], 1);
  EXPECT_EQ(join["rendezvous"], "host:1234");
  EXPECT_EQ(join["timeout_ms"], 10'000);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Job, ManyBucketsInDifferentOrdersAreToldApart) {
  FakeDaemon daemon;
  constexpr int kBuckets = 40;
  as_ranks(2, [&](int32_t rank) {
    gw_job* job = join_or_fail(daemon, rank, 2);
    std::vector<gw_bucket*> buckets;
    for (int i = 0; i < kBuckets; ++i) {
      buckets.push_back(bucket_or_fail(job, numbered(i).c_str(), 16));
      gradient_of(buckets[i])[0] = static_cast<float>(i + rank);
    }
    for (int i = 0; i < kBuckets; ++i) {
      gw_bucket* bucket = buckets[rank == 0 ? i : kBuckets - 1 - i];
      ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK) << gw_last_error();
    }
    for (int i = 0; i < kBuckets; ++i) {
      const int at = (i * 7) % kBuckets;
      ASSERT_EQ(gw_wait(buckets[at], 5000, nullptr), GW_OK) << gw_last_error();
      EXPECT_EQ(result_of(buckets[at])[0], static_cast<float>(2 * at + 1));
    }
    EXPECT_EQ(gw_leave(job), GW_OK);
  });
}

TEST(Job, WaitAnyGivesEachFinishedBucketOnce) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  std::vector<gw_bucket*> buckets;
  for (int i = 0; i < 10; ++i) {
    buckets.push_back(bucket_or_fail(job, numbered(i).c_str(), 1));
    ASSERT_EQ(gw_allreduce(buckets.back(), GW_SUM), GW_OK);
  }
  ASSERT_EQ(gw_wait(buckets[4], 5000, nullptr), GW_OK);
  std::vector<gw_bucket*> seen;
  for (int i = 0; i < 9; ++i) {
    gw_bucket* bucket = nullptr;
    ASSERT_EQ(gw_wait_any(job, 5000, &bucket, nullptr), GW_OK) << gw_last_error();
    seen.push_back(bucket);
  }
  buckets.erase(buckets.begin() + 4);
  EXPECT_EQ(seen, buckets);
  gw_bucket* bucket = buckets[0];
  EXPECT_EQ(gw_wait_any(job, 5000, &bucket, nullptr), GW_ERR_NOT_FOUND);
  EXPECT_EQ(bucket, nullptr);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Job, AThreadMaySubmitAndCreateWhileAnotherSleepsInAWait) {
  Behaviour behaviour;
  behaviour.complete = false;
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  gw_bucket* first = bucket_or_fail(job, "first", 1);
  ASSERT_EQ(gw_allreduce(first, GW_SUM), GW_OK);
  std::atomic<int> finished{0};
  std::thread waiter([&] {
    while (finished < 2) {
      gw_bucket* bucket = nullptr;
      const gw_status status = gw_wait_any(job, 10'000, &bucket, nullptr);
      if (status != GW_ERR_BUSY) {  // the other thread looked whether we are there
        ASSERT_EQ(status, GW_OK) << gw_last_error();
        ++finished;
      }
    }
  });
  for (int done = 0; gw_test(first, &done, nullptr) != GW_ERR_BUSY;) {
    ASSERT_EQ(done, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  gw_bucket* second = bucket_or_fail(job, "second", 1);
  EXPECT_EQ(gw_allreduce(second, GW_SUM), GW_OK) << gw_last_error();
  EXPECT_EQ(gw_wait(second, 1, nullptr), GW_ERR_BUSY);
  EXPECT_NE(last_error().find("waiting side"), std::string::npos);
  EXPECT_EQ(gw_leave(job), GW_ERR_BUSY);
  daemon.complete_from_now();
  waiter.join();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Job, ATimeOutLeavesTheOperationInFlight) {
  Behaviour behaviour;
  behaviour.complete = false;
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 1);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  for (const int64_t timeout : {0, 1, 30}) {
    EXPECT_EQ(gw_wait(bucket, timeout, nullptr), GW_ERR_TIMEOUT);
    EXPECT_NE(last_error().find("bucket b"), std::string::npos) << gw_last_error();
  }
  int done = 9;
  EXPECT_EQ(gw_test(bucket, &done, nullptr), GW_OK);
  EXPECT_EQ(done, 0);
  EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_ERR_BUSY);
  EXPECT_EQ(gw_bucket_destroy(bucket), GW_ERR_BUSY);
  EXPECT_EQ(gw_barrier(job, 1), GW_ERR_TIMEOUT);
  daemon.complete_from_now();
  EXPECT_EQ(gw_barrier(job, 5000), GW_OK) << gw_last_error();
  while (done == 0 || done == 9) {
    ASSERT_EQ(gw_test(bucket, &done, nullptr), GW_OK) << gw_last_error();
  }
  EXPECT_EQ(gw_wait(bucket, 5000, nullptr), GW_ERR_INVALID);
  EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Job, ANegativeTimeOutEndsWithTheDaemonsClock) {
  Behaviour behaviour;
  behaviour.complete = false;
  behaviour.operation_timeout_ms = 50;
  behaviour.peer_timeout_ms = 200;
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 1);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(bucket, -1, nullptr), GW_ERR_TIMEOUT);
  EXPECT_NE(last_error().find("1250 ms"), std::string::npos) << gw_last_error();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Job, BroadcastGivesTheRootsValuesAndIntegersAreExact) {
  FakeDaemon daemon;
  as_ranks(2, [&](int32_t rank) {
    gw_job* job = join_or_fail(daemon, rank, 2);
    gw_bucket* bucket = bucket_or_fail(job, "b", 4, GW_INT32);
    auto* gradient = static_cast<int32_t*>(gw_bucket_gradient(bucket));
    std::fill(gradient, gradient + 4, 16'777'217 + rank);
    ASSERT_EQ(gw_broadcast(bucket, 1), GW_OK) << gw_last_error();
    ASSERT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK);
    EXPECT_EQ(static_cast<const int32_t*>(gw_bucket_result(bucket))[3], 16'777'218);
    ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK) << gw_last_error();
    ASSERT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK);
    EXPECT_EQ(static_cast<const int32_t*>(gw_bucket_result(bucket))[3], 33'554'435);
    EXPECT_EQ(gw_broadcast(bucket, 2), GW_ERR_NOT_FOUND);
    EXPECT_EQ(gw_broadcast(bucket, -1), GW_ERR_NOT_FOUND);
    EXPECT_EQ(gw_allreduce(bucket, GW_AVERAGE), GW_ERR_INVALID);
    EXPECT_EQ(gw_leave(job), GW_OK);
  });
}

TEST(Job, TrafficComesFromTheDaemonAndOldCallersGetWhatFits) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 1);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  ASSERT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK);
  gw_traffic traffic{};
  traffic.struct_size = sizeof(traffic);
  ASSERT_EQ(gw_job_traffic(job, &traffic), GW_OK) << gw_last_error();
  EXPECT_EQ(traffic.operations, 1u);
  EXPECT_EQ(traffic.raw_bytes, 1000u);
  EXPECT_EQ(traffic.wire_bytes, 10u);
  gw_traffic small{};
  small.struct_size = offsetof(gw_traffic, wire_bytes);
  small.wire_bytes = 555;
  ASSERT_EQ(gw_job_traffic(job, &small), GW_OK);
  EXPECT_EQ(small.raw_bytes, 1000u);
  EXPECT_EQ(small.wire_bytes, 555u);
  small.struct_size = 0;
  EXPECT_EQ(gw_job_traffic(job, &small), GW_ERR_INVALID);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Job, ASleepingDaemonIsWokenAndNobodyHasToSpin) {
  ASSERT_EQ(setenv("GRADWIRE_SPIN", "0", 1), 0);
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  ASSERT_EQ(unsetenv("GRADWIRE_SPIN"), 0);
  gw_bucket* bucket = bucket_or_fail(job, "b", 1);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK) << gw_last_error();
    ASSERT_EQ(gw_wait(bucket, 10'000, nullptr), GW_OK) << gw_last_error();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // asleep by now
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  ASSERT_EQ(gw_wait(bucket, 10'000, nullptr), GW_OK);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Job, AFullRingIsBusyAndNothingIsLost) {
  Behaviour behaviour;
  behaviour.complete = false;
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  std::vector<gw_bucket*> buckets;
  for (uint32_t i = 0; i <= layout::kRingCapacity; ++i) {
    buckets.push_back(bucket_or_fail(job, numbered(i).c_str(), 1));
  }
  for (uint32_t i = 0; i < layout::kRingCapacity; ++i) {
    ASSERT_EQ(gw_allreduce(buckets[i], GW_SUM), GW_OK) << gw_last_error();
  }
  EXPECT_EQ(gw_allreduce(buckets.back(), GW_SUM), GW_ERR_BUSY);
  EXPECT_NE(last_error().find("4096"), std::string::npos) << gw_last_error();
  daemon.complete_from_now();
  for (uint32_t i = 0; i < layout::kRingCapacity; ++i) {
    ASSERT_EQ(gw_wait(buckets[i], 10'000, nullptr), GW_OK) << gw_last_error();
  }
  EXPECT_EQ(gw_allreduce(buckets.back(), GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(buckets.back(), 10'000, nullptr), GW_OK);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

}  // namespace
}  // namespace gradwire::client
