// A daemon that is there but does not move, and pauses that are not its fault.
#include "client/src/connection.h"
#include "client/src/pulse.h"
#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

constexpr int64_t kMs = 1'000'000;

// Looks every `step` ms for `total` ms; true if the daemon was blamed.
bool look_for(Pulse* pulse, int64_t* now, int64_t total, int64_t step, uint64_t sign) {
  bool blamed = false;
  for (const int64_t end = *now + total * kMs; *now < end; *now += step * kMs) {
    blamed = pulse->stands_still(sign, *now) || blamed;
  }
  return blamed;
}

TEST(Pulse, SilenceLongerThanTheLimitIsTheDaemons) {
  Pulse pulse(3000);
  int64_t now = 5 * kMs;
  EXPECT_FALSE(look_for(&pulse, &now, 3000, 100, 7));
  EXPECT_TRUE(look_for(&pulse, &now, 300, 100, 7));
  EXPECT_GT(pulse.quiet_ms(), 3000);
  EXPECT_FALSE(pulse.stands_still(8, now));
  EXPECT_EQ(pulse.quiet_ms(), 0);
}

TEST(Pulse, ASignInTimeStartsTheCountAgain) {
  Pulse pulse(3000);
  int64_t now = 0;
  for (uint64_t sign = 0; sign < 5; ++sign) {
    EXPECT_FALSE(look_for(&pulse, &now, 2900, 100, sign));
  }
}

TEST(Pulse, APauseOfTheCallerOrAJumpOfTheClockBlamesNobody) {
  Pulse pulse(3000);
  int64_t now = 0;
  EXPECT_FALSE(look_for(&pulse, &now, 2900, 100, 7));
  now += 3'600'000 * kMs;  // the machine slept
  EXPECT_FALSE(look_for(&pulse, &now, 2900, 100, 7));
  now -= 10'000 * kMs;
  EXPECT_FALSE(look_for(&pulse, &now, 2900, 100, 7));
  EXPECT_FALSE(look_for(&pulse, &now, 60'000, 600, 7));  // looks too rarely to know
  EXPECT_FALSE(look_for(&pulse, &now, 2900, 400, 7));
  EXPECT_TRUE(look_for(&pulse, &now, 800, 400, 7));
}

Behaviour held() {
  Behaviour behaviour;
  behaviour.complete = false;
  behaviour.peer_timeout_ms = 200;
  return behaviour;
}

void expect_still(const std::function<gw_status(gw_job*, gw_bucket*)>& call) {
  FakeDaemon daemon(held());
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  daemon.stand_still(true);
  const auto start = std::chrono::steady_clock::now();
  expect({call(job, bucket), gw_last_error()}, GW_ERR_UNAVAILABLE, "stands still: it has not moved for 1");
  const std::string sentence = gw_last_error();
  EXPECT_NE(sentence.find(daemon.socket_path()), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("gradwire status"), std::string::npos) << sentence;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  // The job has ended for this client, whatever the daemon does from here on.
  daemon.stand_still(false);
  const auto after = std::chrono::steady_clock::now();
  expect({gw_barrier(job, -1), gw_last_error()}, GW_ERR_UNAVAILABLE, sentence.c_str());
  expect({gw_leave(job), gw_last_error()}, GW_ERR_UNAVAILABLE, sentence.c_str());
  EXPECT_LT(std::chrono::steady_clock::now() - after, std::chrono::seconds(1));
}

// Each waits for more than a second, so all at once.
TEST(Standstill, EveryCallThatWaitsSaysThatTheDaemonDoesNotMove) {
  const std::vector<std::function<gw_status(gw_job*, gw_bucket*)>> calls{
      [](gw_job*, gw_bucket* bucket) {
        EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
        return gw_wait(bucket, -1, nullptr);
      },
      [](gw_job* job, gw_bucket* bucket) {
        EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
        return gw_wait_any(job, -1, &bucket, nullptr);
      },
      [](gw_job*, gw_bucket* bucket) {
        EXPECT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
        gw_status status = GW_OK;
        for (int done = 0; status == GW_OK && done == 0;) {
          status = gw_test(bucket, &done, nullptr);
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return status;
      },
      [](gw_job* job, gw_bucket*) { return gw_barrier(job, -1); },
      [](gw_job* job, gw_bucket*) {
        const gw_layer layer{"w", 8};
        gw_bucket* other = nullptr;
        return gw_bucket_create(job, "c", GW_FLOAT32, &layer, 1, 0, &other);
      },
      [](gw_job*, gw_bucket* bucket) { return gw_bucket_destroy(bucket); },
      [](gw_job* job, gw_bucket*) {
        gw_traffic traffic{};
        traffic.struct_size = sizeof(traffic);
        return gw_job_traffic(job, &traffic);
      },
  };
  std::vector<std::thread> threads;
  for (const auto& call : calls) {
    threads.emplace_back([&call] { expect_still(call); });
  }
  threads.emplace_back([] {
    FakeDaemon daemon(held());
    gw_job* job = join_or_fail(daemon);
    daemon.stand_still(true);
    expect({gw_leave(job), gw_last_error()}, GW_ERR_UNAVAILABLE, "stands still");
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Standstill, AShortPauseIsSurvived) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  daemon.stand_still(true);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    daemon.stand_still(false);
  });
  EXPECT_EQ(gw_wait(bucket, -1, nullptr), GW_OK) << gw_last_error();
  other.join();
  EXPECT_EQ(gw_leave(job), GW_OK) << gw_last_error();
}

// A join has no heartbeat to look at and may wait for other ranks for a long time.
TEST(Standstill, AJoinTellsADaemonThatStandsFromOneThatWaits) {
  Behaviour behaviour;
  behaviour.answer_joins = false;
  FakeDaemon daemon(behaviour);
  const nlohmann::json join{{"type", "join"}, {"rank", 0}, {"world", 2}};
  Connection connection(/*still_ms=*/300);
  Patience patience(0);
  ASSERT_EQ(connection.open(daemon.socket_path(), &patience), GW_OK);
  Answer answer;
  expect({connection.request(join, "joined", Connection::kAnyDescriptors, Deadline::after_ms(700), &answer),
          gw_last_error()},
         GW_ERR_TIMEOUT, "did not answer in time");
  daemon.stand_still(true);
  expect({connection.request(join, "joined", Connection::kAnyDescriptors, Deadline::never(), &answer),
          gw_last_error()},
         GW_ERR_UNAVAILABLE, "stands still");
}

}  // namespace
}  // namespace gradwire::client
