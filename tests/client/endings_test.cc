// The end of an epoch, a daemon or a process while operations are in flight, and completions that are wrong.
#include <chrono>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

class Waiting : public testing::Test {
 protected:
  static Behaviour held() {
    Behaviour behaviour;
    behaviour.complete = false;
    return behaviour;
  }
  void SetUp() override {
    job = join_or_fail(daemon);
    bucket = bucket_or_fail(job, "b", 8);
    ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  }
  // Runs `event` while this thread waits; the wait must end by it and not by its time-out.
  Attempt wait_during(const std::function<void()>& event) {
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      event();
    });
    const auto start = std::chrono::steady_clock::now();
    const gw_status status = gw_wait(bucket, 30'000, nullptr);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    other.join();
    return {status, gw_last_error()};
  }
  FakeDaemon daemon{held()};
  gw_job* job = nullptr;
  gw_bucket* bucket = nullptr;
};

TEST_F(Waiting, TheDaemonsDeathEndsTheWaitAndTheJob) {
  expect(wait_during([&] { daemon.die(); }), GW_ERR_UNAVAILABLE, "closed the connection");
  EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_ERR_UNAVAILABLE);
  EXPECT_EQ(gw_barrier(job, 1000), GW_ERR_UNAVAILABLE);
  int done = 1;
  EXPECT_EQ(gw_test(bucket, &done, nullptr), GW_ERR_UNAVAILABLE);
  EXPECT_EQ(done, 0);
  EXPECT_EQ(gw_bucket_destroy(bucket), GW_OK);
  EXPECT_EQ(gw_leave(job), GW_ERR_UNAVAILABLE);
}

TEST_F(Waiting, AnAbortInMemoryAndOnTheSocketGivesItsCause) {
  expect(wait_during([&] { daemon.end_epoch("rank 3 (pid 77) on node b died"); }), GW_ERR_ABORTED,
         "rank 3 (pid 77) on node b died");
  EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_ERR_ABORTED);
  expect({gw_barrier(job, 1000), gw_last_error()}, GW_ERR_ABORTED, "rank 3");
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST_F(Waiting, AnAbortInMemoryAloneIsFound) {
  expect(wait_during([&] { daemon.end_epoch("cause in memory", true, false); }), GW_ERR_ABORTED,
         "cause in memory");
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST_F(Waiting, AnAbortOnTheSocketAloneIsFound) {
  expect(wait_during([&] { daemon.end_epoch("cause on the socket", false, true); }), GW_ERR_ABORTED,
         "cause on the socket");
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST_F(Waiting, AnAbortThenDeathStillGivesTheCause) {
  daemon.end_epoch("the real cause");
  daemon.die();
  expect(wait_during([] {}), GW_ERR_ABORTED, "the real cause");
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST_F(Waiting, PollingSeesTheDaemonsDeath) {
  daemon.die();
  int done = 0;
  gw_status status = GW_OK;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (status == GW_OK && std::chrono::steady_clock::now() < until) {
    status = gw_test(bucket, &done, nullptr);
  }
  EXPECT_EQ(status, GW_ERR_UNAVAILABLE);
  EXPECT_EQ(gw_leave(job), GW_ERR_UNAVAILABLE);
}

TEST_F(Waiting, ARequestSeesTheAbortToo) {
  daemon.end_epoch("gone wrong");
  const gw_layer layer{"w", 8};
  gw_bucket* other = nullptr;
  EXPECT_EQ(gw_bucket_create(job, "c", GW_FLOAT32, &layer, 1, 0, &other), GW_ERR_ABORTED);
  EXPECT_EQ(last_error(), "gone wrong");
  EXPECT_EQ(gw_leave(job), GW_OK);
}

void expect_bad_completion(const std::function<void(layout::Completion*)>& edit) {
  Behaviour behaviour;
  behaviour.edit_completion = edit;
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(bucket, 5000, nullptr), GW_ERR_PROTOCOL) << gw_last_error();
  EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_ERR_PROTOCOL);
  EXPECT_EQ(gw_leave(job), GW_ERR_PROTOCOL);
}

TEST(Completions, ThoseThatFitNoOperationEndTheJob) {
  expect_bad_completion([](layout::Completion* c) { c->user_data = 3; });
  expect_bad_completion([](layout::Completion* c) { c->user_data = UINT64_MAX; });
  expect_bad_completion([](layout::Completion* c) { c->bucket = 9; });
  expect_bad_completion([](layout::Completion* c) { c->sequence = 2; });
  expect_bad_completion([](layout::Completion* c) { c->status = -1; });
  expect_bad_completion([](layout::Completion* c) { c->status = 99; });
  expect_bad_completion([](layout::Completion* c) { c->result_slot = 1; });
}

TEST(Completions, StatusAndFlagsReachTheWaiter) {
  Behaviour behaviour;
  behaviour.edit_completion = [](layout::Completion* completion) {
    completion->flags = completion->sequence == 1 ? layout::kCompletionNotFinite : 0;
    completion->status = completion->sequence == 2 ? GW_ERR_EXHAUSTED : GW_OK;
  };
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  uint32_t flags = 0;
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(bucket, 5000, &flags), GW_OK);
  EXPECT_EQ(flags, GW_RESULT_NOT_FINITE);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(bucket, 5000, &flags), GW_ERR_EXHAUSTED);
  EXPECT_NE(last_error().find("bucket b"), std::string::npos) << gw_last_error();
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(bucket, 5000, &flags), GW_OK);
  EXPECT_EQ(flags, 0u);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

}  // namespace
}  // namespace gradwire::client
