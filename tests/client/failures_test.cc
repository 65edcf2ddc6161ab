// The daemon's and the caller's mistakes: each a clear error, within its time, and nothing leaks.
#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

struct Attempt {
  gw_status status;
  std::string error;
};

Attempt try_join(const gw_join_options& options) {
  gw_job* job = reinterpret_cast<gw_job*>(1);
  const gw_status status = gw_join(&options, &job);
  if (status == GW_OK) {
    EXPECT_EQ(gw_leave(job), GW_OK);
  } else {
    EXPECT_EQ(job, nullptr);
  }
  return {status, gw_last_error()};
}

Attempt try_join(Behaviour behaviour) {
  FakeDaemon daemon(std::move(behaviour));
  gw_join_options options = options_for(daemon);
  options.timeout_ms = 200;
  return try_join(options);
}

void expect(const Attempt& attempt, gw_status status, const char* part) {
  EXPECT_EQ(attempt.status, status) << attempt.error;
  EXPECT_NE(attempt.error.find(part), std::string::npos) << attempt.error;
}

size_t open_descriptors() {
  DIR* directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) {
    ++count;
  }
  closedir(directory);
  return count;
}

TEST(JoinFailure, NoDaemonAndAStaleSocketSayWhatToDo) {
  gw_join_options options{};
  options.struct_size = sizeof(options);
  options.world = 1;
  options.socket = "/nonexistent/gradwired.sock";
  expect(try_join(options), GW_ERR_UNAVAILABLE, "no gradwired at /nonexistent/gradwired.sock");
  FakeDaemon daemon;
  daemon.die();
  expect(try_join(options_for(daemon)), GW_ERR_UNAVAILABLE, "nobody listens");
  const std::string long_path(200, 's');
  options.socket = long_path.c_str();
  expect(try_join(options), GW_ERR_INVALID, "200 bytes");
}

TEST(JoinFailure, ARefusalKeepsItsCodeAndSentence) {
  Behaviour behaviour;
  behaviour.join_refusal =
      json{{"type", "error"}, {"code", "unsupported"}, {"message", "protocol 1 is too old here"}};
  expect(try_join(behaviour), GW_ERR_UNSUPPORTED, "protocol 1 is too old here");
  behaviour.join_refusal =
      json{{"type", "error"}, {"code", "deadline_exceeded"}, {"message", "rank 1 never came"}};
  expect(try_join(behaviour), GW_ERR_TIMEOUT, "rank 1 never came");
  behaviour.join_refusal = json{{"type", "error"}, {"code", "of the future"}};
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "of the future");
}

TEST(JoinFailure, AnotherLayoutIsRefusedInTheAnswerAndInTheMemory) {
  Behaviour behaviour;
  behaviour.layout = 2;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "gradwired 9.9.9 uses layout 2");
  behaviour.layout = 1;
  behaviour.memory_layout = 2;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "knows layout 1");
  behaviour.memory_layout = 1;
  behaviour.magic = 1;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "mark");
}

TEST(JoinFailure, GarbageTruncationAndGiantsAreProtocolErrors) {
  Behaviour behaviour;
  behaviour.join_answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "bytes was announced");
  for (const char* text : {"[]", "17", "{", "nonsense", "{\"type\":5}", "{\"id\":1}", "\"joined\""}) {
    behaviour.join_answer = wire::encode_frame(text);
    expect(try_join(behaviour), GW_ERR_PROTOCOL, "not Gradwire's");
  }
  behaviour.join_answer = wire::encode_frame("{\"type\":\"joined\",\"id\":1}");
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "descriptors");
  behaviour.join_answer = wire::encode_frame("{\"type\":\"ok\",\"id\":1}");
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "\"ok\"");
  behaviour.close_after_answer = true;
  behaviour.join_answer = wire::encode_frame("{\"type\":\"joined\",\"id\":1}").substr(0, 10);
  expect(try_join(behaviour), GW_ERR_UNAVAILABLE, "closed the connection");
}

TEST(JoinFailure, SessionMemoryIsExaminedBeforeItIsUsed) {
  Behaviour behaviour;
  behaviour.seal = false;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "not sealed");
  behaviour.seal = true;
  behaviour.extra_session_bytes = 4096;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "were announced");
  behaviour.extra_session_bytes = -4096;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "were announced");
  behaviour.extra_session_bytes = 0;
  behaviour.descriptors = 2;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "2 descriptors");
}

TEST(JoinFailure, ASilentDaemonIsLeftAfterTheTimeOutAndNothingLeaks) {
  Behaviour behaviour;
  behaviour.answer_joins = false;
  FakeDaemon daemon(behaviour);
  gw_join_options options = options_for(daemon);
  options.timeout_ms = 1;
  const size_t before = open_descriptors();
  expect(try_join(options), GW_ERR_TIMEOUT, "was not complete within 1 ms");
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // the fake daemon, same process, closes its end
  EXPECT_EQ(open_descriptors(), before);
}

TEST(BucketFailure, ArgumentsAreCheckedWithASentence) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  const auto create = [&](const char* name, gw_dtype dtype, std::vector<gw_layer> layers, uint32_t flags) {
    gw_bucket* bucket = nullptr;
    const gw_status status = gw_bucket_create(job, name, dtype, layers.data(), layers.size(), flags, &bucket);
    EXPECT_EQ(bucket, nullptr);
    return Attempt{status, gw_last_error()};
  };
  expect(create(nullptr, GW_FLOAT32, {{"w", 1}}, 0), GW_ERR_INVALID, "needs a name");
  expect(create("b", 7, {{"w", 1}}, 0), GW_ERR_INVALID, "dtype 7");
  expect(create("b", GW_FLOAT32, {}, 0), GW_ERR_INVALID, "0 layers");
  expect(create("b", GW_FLOAT32, {{"w", 1}, {"w", 2}}, 0), GW_ERR_INVALID, "two layers named w");
  expect(create("b", GW_FLOAT32, {{"", 1}}, 0), GW_ERR_INVALID, "needs a name");
  expect(create("b", GW_FLOAT32, {{"\xff", 1}}, 0), GW_ERR_INVALID, "UTF-8");
  expect(create("b", GW_FLOAT32, {{"w", UINT64_MAX}, {"v", 2}}, 0), GW_ERR_INVALID, "elements");
  expect(create("b", GW_FLOAT32, {{"w", 1}}, 2), GW_ERR_UNSUPPORTED, "flags 2");
  const std::string name(4097, 'n');
  expect(create(name.c_str(), GW_FLOAT32, {{"w", 1}}, 0), GW_ERR_INVALID, "longer than 4096");
  const std::string long_name(4096, 'n');
  std::vector<std::string> names;
  std::vector<gw_layer> many;
  for (int i = 0; i < 4200; ++i) {
    names.push_back(std::to_string(10'000 + i) + long_name.substr(5));
  }
  for (const std::string& n : names) {
    many.push_back({n.c_str(), 1});
  }
  expect(create("b", GW_FLOAT32, many, 0), GW_ERR_INVALID, "shorter names");
  gw_bucket* bucket = bucket_or_fail(job, "fine", 0);
  EXPECT_EQ(gw_bucket_elements(bucket), 0u);
  EXPECT_NE(gw_bucket_gradient(bucket), nullptr);
  EXPECT_EQ(gw_allreduce(bucket, 5), GW_ERR_INVALID);
  for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(gw_allreduce_scaled(bucket, GW_SUM, scale), GW_ERR_INVALID);
  }
  EXPECT_EQ(gw_wait(bucket, 0, nullptr), GW_ERR_INVALID);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(BucketFailure, RanksThatDisagreeAreAllTold) {
  FakeDaemon daemon;
  as_ranks(2, [&](int32_t rank) {
    gw_job* job = join_or_fail(daemon, rank, 2);
    const gw_layer layer{"w", static_cast<uint64_t>(8 + rank)};
    gw_bucket* bucket = nullptr;
    EXPECT_EQ(gw_bucket_create(job, "b", GW_FLOAT32, &layer, 1, 0, &bucket), GW_ERR_MISMATCH);
    EXPECT_NE(last_error().find("rank 1"), std::string::npos) << gw_last_error();
    EXPECT_EQ(gw_leave(job), GW_OK);
  });
}

TEST(BucketFailure, BadAnswersAndBadMemoryAreProtocolErrors) {
  for (int kind = 0; kind < 3; ++kind) {
    Behaviour behaviour;
    if (kind == 0) {
      behaviour.bucket_answer = wire::encode_frame("{\"type\":\"bucket_created\",\"id\":2}");
    } else if (kind == 1) {
      behaviour.extra_gradient_bytes = 4096;
    } else {
      behaviour.bucket_answer = wire::encode_frame("{\"type\":\"bucket_created\",\"id\":99}");
    }
    FakeDaemon daemon(behaviour);
    gw_job* job = join_or_fail(daemon);
    const gw_layer layer{"w", 8};
    gw_bucket* bucket = nullptr;
    EXPECT_EQ(gw_bucket_create(job, "b", GW_FLOAT32, &layer, 1, 0, &bucket), GW_ERR_PROTOCOL)
        << gw_last_error();
    EXPECT_EQ(bucket, nullptr);
    (void)gw_leave(job);
  }
}

TEST(BucketFailure, ACompressedBucketRefusesWhatOnlyExactOnesCan) {
  Behaviour behaviour;
  behaviour.codec = "laco";
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  EXPECT_STREQ(gw_bucket_codec(bucket), "laco");
  EXPECT_EQ(gw_allreduce(bucket, GW_MAX), GW_ERR_UNSUPPORTED);
  EXPECT_EQ(gw_allreduce(bucket, GW_AVERAGE), GW_OK);
  EXPECT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

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

TEST_F(Waiting, AForkedChildIsRefusedAndTheParentGoesOn) {
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    int done = 0;
    gw_traffic traffic{};
    traffic.struct_size = sizeof(traffic);
    wrong += gw_allreduce(bucket, GW_SUM) != GW_ERR_FORKED;
    wrong += gw_wait(bucket, 1000, nullptr) != GW_ERR_FORKED;
    wrong += gw_test(bucket, &done, nullptr) != GW_ERR_FORKED;
    wrong += gw_barrier(job, 1000) != GW_ERR_FORKED;
    wrong += gw_job_traffic(job, &traffic) != GW_ERR_FORKED;
    wrong += gw_bucket_destroy(bucket) != GW_ERR_FORKED;
    wrong += gw_bucket_gradient(bucket) != nullptr;
    wrong += gw_rank(job) != -1;
    wrong += gw_leave(job) != GW_ERR_FORKED;
    wrong += std::strstr(gw_last_error(), "parent") == nullptr;
    _exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  daemon.complete_from_now();
  EXPECT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK) << gw_last_error();
  EXPECT_EQ(gw_leave(job), GW_OK) << gw_last_error();
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
