// Mistakes of the daemon's and the caller's before an operation: each a clear error, and nothing leaks.
#include <dirent.h>

#include <chrono>
#include <cmath>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

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
  behaviour.layout = 1;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "gradwired 9.9.9 uses layout 1");
  behaviour.layout = layout::kLayoutVersion;
  behaviour.memory_layout = 3;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "knows layout 2");
  behaviour.memory_layout = layout::kLayoutVersion;
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
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "of unknown version");
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
  behaviour.descriptors = 1;
  expect(try_join(behaviour), GW_ERR_PROTOCOL, "1 descriptors");
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
  expect(create("b", GW_FLOAT32, std::vector<gw_layer>(300'001, {"w", 1}), 0), GW_ERR_INVALID,
         "has 300001 layers; 1 to 300000 are possible: make several buckets");
  expect(create("b", GW_FLOAT32, {{"w", 1}, {"w", 2}}, 0), GW_ERR_INVALID, "two layers named w");
  expect(create("b", GW_FLOAT32, {{"", 1}}, 0), GW_ERR_INVALID, "needs a name");
  expect(create("b", GW_FLOAT32, {{"\xff", 1}}, 0), GW_ERR_INVALID, "UTF-8");
  expect(create("b", GW_FLOAT32, {{"w\xc2\x9bm", 1}}, 0), GW_ERR_INVALID,
         "holds a control character at byte 1");
  expect(create("b\xe2\x80\xae", GW_FLOAT32, {{"w", 1}}, 0), GW_ERR_INVALID,
         "name of a bucket holds a control");
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
  for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL, 0x1p-61, 0x1p61, 5e-324}) {
    EXPECT_EQ(gw_allreduce_scaled(bucket, GW_SUM, scale), GW_ERR_INVALID);
  }
  expect({gw_flush_scaled(bucket, GW_SUM, 1e-39), gw_last_error()}, GW_ERR_INVALID,
         "bucket fine: the scale 1e-39 is not from 2^-60 to 2^60");
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

}  // namespace
}  // namespace gradwire::client
