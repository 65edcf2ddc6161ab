// What the client's tests share: ranks of a job as threads of this process, on a FakeDaemon.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <gradwire/gradwire.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/fake_daemon.h"

namespace gradwire::client {

inline gw_join_options options_for(const FakeDaemon& daemon, int32_t rank = 0, int32_t world = 1) {
  gw_join_options options{};
  options.struct_size = sizeof(options);
  options.job = "test";
  options.rank = rank;
  options.world = world;
  options.socket = daemon.socket_path().c_str();
  options.rendezvous = "";
  options.timeout_ms = 10'000;
  return options;
}

inline JoinOptions cpp_options_for(const FakeDaemon& daemon) {
  JoinOptions options;
  options.socket = daemon.socket_path();
  options.rank = 0;
  options.world = 1;
  options.rendezvous = "";
  return options;
}

inline gw_job* join_or_fail(const FakeDaemon& daemon, int32_t rank = 0, int32_t world = 1) {
  const gw_join_options options = options_for(daemon, rank, world);
  gw_job* job = nullptr;
  EXPECT_EQ(gw_join(&options, &job), GW_OK) << gw_last_error();
  return job;
}

inline gw_bucket* bucket_or_fail(gw_job* job, const char* name, uint64_t elements,
                                 gw_dtype dtype = GW_FLOAT32) {
  const gw_layer layer{"weight", elements};
  gw_bucket* bucket = nullptr;
  EXPECT_EQ(gw_bucket_create(job, name, dtype, &layer, 1, GW_BUCKET_GRADIENT, &bucket), GW_OK)
      << gw_last_error();
  return bucket;
}

inline void as_ranks(int32_t world, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back(body, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

inline std::string last_error() {
  return gw_last_error();
}

struct Attempt {
  gw_status status;
  std::string error;
};

inline void expect(const Attempt& attempt, gw_status status, const char* part) {
  EXPECT_EQ(attempt.status, status) << attempt.error;
  EXPECT_NE(attempt.error.find(part), std::string::npos) << attempt.error;
}

}  // namespace gradwire::client
