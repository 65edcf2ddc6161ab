// Saving and loading the compression state: what goes through the functions, and what ends it.
#include <cstring>
#include <gradwire/gradwire.hpp>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

int append(void* user, const void* data, size_t size) {
  static_cast<std::string*>(user)->append(static_cast<const char*>(data), size);
  return 0;
}

struct Source {
  std::string_view text;
  size_t most = SIZE_MAX;  // at a time

  static int64_t read(void* user, void* data, size_t size) {
    auto* const self = static_cast<Source*>(user);
    const std::string_view part = self->text.substr(0, std::min(self->most, size));
    std::memcpy(data, part.data(), part.size());
    self->text.remove_prefix(part.size());
    return static_cast<int64_t>(part.size());
  }
};

std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 10'000; ++i) {
    text += std::to_string(i) + " ";
  }
  return text;
}

Attempt save(gw_job* job, std::string* into) {
  const gw_status status = gw_state_save(job, append, into);
  return {status, last_error()};
}

Attempt load(gw_job* job, std::string_view text, size_t most = SIZE_MAX) {
  Source source{text, most};
  const gw_status status = gw_state_load(job, Source::read, &source);
  return {status, last_error()};
}

// A daemon with a long state that refuses what it would answer with `type`.
Behaviour refusing(const char* type, const char* code, const char* message) {
  Behaviour behaviour;
  behaviour.state = long_text();
  behaviour.edit_state = [=](nlohmann::json* answer) {
    if ((*answer)["type"] == type) {
      *answer = {{"type", "error"}, {"id", (*answer)["id"]}, {"code", code}, {"message", message}};
    }
  };
  return behaviour;
}

TEST(State, GoesThroughTheFunctionsInParts) {
  Behaviour behaviour;
  behaviour.state = long_text();
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  std::string saved;
  EXPECT_EQ(save(job, &saved).status, GW_OK) << last_error();
  EXPECT_EQ(saved, long_text());
  for (const size_t most : {SIZE_MAX, size_t{100}}) {
    const std::string other = std::to_string(most) + long_text();
    EXPECT_EQ(load(job, other, most).status, GW_OK) << last_error();
    EXPECT_EQ(daemon.state(), other);
  }
  EXPECT_EQ(load(job, std::string(4096, 'x')).status, GW_OK) << "exactly a window";
  EXPECT_EQ(daemon.state(), std::string(4096, 'x'));
  EXPECT_EQ(load(job, "").status, GW_OK) << "an empty one is the daemon's to refuse";
  EXPECT_EQ(gw_barrier(job, 5000), GW_OK) << last_error();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(State, IsSavedWhenEveryOperationHasBeenWaitedFor) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  bucket_or_fail(job, "idle", 8);
  gw_bucket* bucket = bucket_or_fail(job, "busy", 8);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  std::string saved;
  expect(save(job, &saved), GW_ERR_BUSY, "bucket busy has an operation that has not been waited for");
  EXPECT_TRUE(daemon.states().empty());
  ASSERT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK);
  EXPECT_EQ(save(job, &saved).status, GW_OK) << last_error();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(State, AFunctionThatStopsEndsItAndTheJobGoesOn) {
  Behaviour behaviour;
  behaviour.state = long_text();
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  const auto full = [](void*, const void*, size_t) { return 28; };
  expect({gw_state_save(job, full, nullptr), last_error()}, GW_ERR_INVALID, "the write function returned 28");
  EXPECT_EQ(daemon.states().back(), "state_close");
  const auto broken = [](void*, void*, size_t) -> int64_t { return -5; };
  expect({gw_state_load(job, broken, nullptr), last_error()}, GW_ERR_INVALID,
         "the read function returned -5");
  EXPECT_EQ(daemon.states().back(), "state_close");
  const auto too_much = [](void*, void*, size_t size) { return static_cast<int64_t>(size) + 1; };
  expect({gw_state_load(job, too_much, nullptr), last_error()}, GW_ERR_INVALID,
         "returned 4097 where 0 to 4096");
  expect({gw_state_save(job, nullptr, nullptr), last_error()}, GW_ERR_INVALID, "is NULL");
  expect({gw_state_load(nullptr, broken, nullptr), last_error()}, GW_ERR_INVALID, "the job is NULL");
  const auto calls = [](void* user, const void*, size_t) {
    gw_traffic traffic{};
    traffic.struct_size = sizeof(traffic);
    EXPECT_EQ(gw_job_traffic(static_cast<gw_job*>(user), &traffic), GW_ERR_BUSY);
    return 0;
  };
  EXPECT_EQ(gw_state_save(job, calls, job), GW_OK) << last_error();
  EXPECT_EQ(daemon.state(), long_text());
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(State, ADaemonsRefusalArrives) {
  FakeDaemon daemon(refusing("ok", "invalid_argument", "the state is damaged before byte 7"));
  gw_job* job = join_or_fail(daemon);
  expect(load(job, "abc"), GW_ERR_INVALID, "damaged before byte 7");
  EXPECT_EQ(daemon.states().back(), "state_put") << "there is nothing to close";
  EXPECT_EQ(gw_barrier(job, 5000), GW_OK) << last_error();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(State, AnswersThatMakeNoSenseAreNotBelieved) {
  using Edit = std::function<void(nlohmann::json*)>;
  const std::vector<Edit> edits = {
      [](nlohmann::json* answer) { (*answer)["window_bytes"] = 8192; },
      [](nlohmann::json* answer) { (*answer)["window_bytes"] = -1; },
      [](nlohmann::json* answer) { (*answer)["bytes"] = 4097; },
      [](nlohmann::json* answer) { (*answer)["last"] = 1; },
      [](nlohmann::json* answer) { answer->erase("bytes"); },
      [](nlohmann::json* answer) {
        (*answer)["bytes"] = 0;
        (*answer)["last"] = false;
      },
  };
  for (size_t i = 0; i < edits.size(); ++i) {
    Behaviour behaviour;
    behaviour.state = "something";
    behaviour.edit_state = edits[i];
    FakeDaemon daemon(behaviour);
    gw_job* job = join_or_fail(daemon);
    std::string saved;
    EXPECT_EQ(save(job, &saved).status, GW_ERR_PROTOCOL) << i << ": " << last_error();
    EXPECT_EQ(saved, "") << i;
    (void)gw_leave(job);
  }
}

TEST(State, TheDaemonsEndIsHeard) {
  Behaviour behaviour;
  behaviour.state = long_text();
  FakeDaemon daemon(behaviour);
  gw_job* job = join_or_fail(daemon);
  const auto dies = [](void* user, const void*, size_t) {
    static_cast<FakeDaemon*>(user)->die();
    return 0;
  };
  EXPECT_EQ(gw_state_save(job, dies, &daemon), GW_ERR_UNAVAILABLE) << last_error();
  (void)gw_leave(job);
}

TEST(State, ARefusedPartLeavesNothingToClose) {
  FakeDaemon daemon(refusing("state_part", "unavailable", "an operation has run"));
  gw_job* job = join_or_fail(daemon);
  std::string saved;
  expect(save(job, &saved), GW_ERR_UNAVAILABLE, "an operation has run");
  EXPECT_EQ(daemon.states(), (std::vector<std::string>{"state_open save", "state_next"}));
  EXPECT_EQ(gw_barrier(job, 5000), GW_OK) << last_error();
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(State, AnAnswerThatComesTooLateLeavesSomethingToClose) {
  for (const std::string late : {"state_opened", "state_part"}) {
    Behaviour behaviour;
    behaviour.state = long_text();
    behaviour.peer_timeout_ms = 500;
    behaviour.operation_timeout_ms = 100;
    behaviour.edit_state = [late](nlohmann::json* answer) {
      if ((*answer)["type"] == late) {
        (*answer)["id"] = 0;  // taken for the late answer to an earlier request
      }
    };
    FakeDaemon daemon(behaviour);
    gw_job* job = join_or_fail(daemon);
    std::string saved;
    expect(save(job, &saved), GW_ERR_TIMEOUT, "did not answer in time");
    EXPECT_EQ(daemon.states().back(), "state_close") << late;
    EXPECT_EQ(gw_barrier(job, 5000), GW_OK) << last_error();
    EXPECT_EQ(gw_leave(job), GW_OK);
  }
}

std::string* plain_text = nullptr;

int plain_write(const void* data, size_t size) {
  return append(plain_text, data, size);
}

int64_t plain_read(void* data, size_t size) {
  Source source{*plain_text};
  const int64_t count = Source::read(&source, data, size);
  *plain_text = source.text;
  return count;
}

TEST(State, CppTakesFunctionsOfAnyKind) {
  Behaviour behaviour;
  behaviour.state = long_text();
  FakeDaemon daemon(behaviour);
  Job job;
  ASSERT_TRUE(job.join(cpp_options_for(daemon)));
  std::string text;
  plain_text = &text;
  ASSERT_TRUE(job.save_state(plain_write));
  EXPECT_EQ(text, long_text());
  text = "loaded by a function";
  ASSERT_TRUE(job.load_state(plain_read));
  EXPECT_EQ(daemon.state(), "loaded by a function");
  ASSERT_TRUE(job.save_state(&plain_write));
  EXPECT_EQ(text, "loaded by a function");
  int (*const pointer)(const void*, size_t) = plain_write;
  ASSERT_TRUE(job.save_state(pointer));
  const std::function<int64_t(void*, size_t)> object = plain_read;
  text = "loaded by an object";
  ASSERT_TRUE(job.load_state(object));
  EXPECT_EQ(daemon.state(), "loaded by an object");
  ASSERT_TRUE(job.leave());
}

TEST(State, CppFunctionsMayThrow) {
  Behaviour behaviour;
  behaviour.state = long_text();
  FakeDaemon daemon(behaviour);
  Job job;
  ASSERT_TRUE(job.join(cpp_options_for(daemon)));
  std::string saved;
  const auto write = [&saved](const void* data, size_t size) {
    saved.append(static_cast<const char*>(data), size);
    return 0;
  };
  ASSERT_TRUE(job.save_state(write));
  EXPECT_EQ(saved, long_text());
  Source source{"other"};
  ASSERT_TRUE(job.load_state([&](void* data, size_t size) { return Source::read(&source, data, size); }));
  EXPECT_EQ(daemon.state(), "other");
  const Outcome thrown = job.save_state([](const void*, size_t) -> int { throw 7; });
  EXPECT_EQ(thrown.status(), GW_ERR_INVALID) << thrown.message();
  ASSERT_TRUE(job.leave());
}

}  // namespace
}  // namespace gradwire::client
