// What the tests of sockets share whose ends take long to close.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "tests/engine/lingering.h"

namespace gradwire::control {

inline constexpr int kLinger = 60;
inline constexpr std::chrono::seconds kSoon{20};  // and far less than kLinger

inline size_t entries(const char* directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}
inline size_t descriptors() {
  return entries("/proc/self/fd");
}

template <typename Condition>
bool soon(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kSoon;
  while (!condition() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return condition();
}

// What a test before has left to threads that end by themselves is gone.
inline size_t descriptors_at_rest() {
  size_t count = descriptors();
  for (int same = 0, looks = 0; same < 20 && looks < 2000; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    same = descriptors() == count ? same + 1 : 0;
    count = descriptors();
  }
  return count;
}

// As on kernels before 6.16: any Unix socket of this process takes descriptors.
inline void let_descriptors_pass() {
  const int on = 1;
  for (int fd = 0; fd < 1024; ++fd) {
    (void)setsockopt(fd, SOL_SOCKET, 83, &on, sizeof(on));  // SO_PASSRIGHTS
  }
}

struct Pair {
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0); }
  int ours() { return std::exchange(ends[0], -1); }
  ~Pair() {
    for (const int end : ends) {
      if (end >= 0) {
        close(end);
      }
    }
  }
  int ends[2] = {-1, -1};
};

}  // namespace gradwire::control
