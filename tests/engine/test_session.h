// A session's memory, its bell and the client's side of both, for tests that run real threads.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "client/layout/ring.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/plain_bytes.h"

namespace gradwire::engine {

class TestSession {
 public:
  explicit TestSession(uint32_t rank) : rank_(rank) {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, bell_) != 0) {
      std::abort();
    }
    keep_urgent_in_line(bell_[0]);
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, layout::kSessionBytes));
    std::memset(memory, 0, layout::kSessionBytes);
    memory_.reset(memory, [](std::byte* freed) { std::free(freed); });
    submissions_ = layout::RingProducer<layout::Submission>(
        &session()->submissions, reinterpret_cast<layout::Submission*>(memory + layout::kSubmissionOffset),
        layout::kRingCapacity);
    completions_ = layout::RingConsumer<layout::Completion>(
        &session()->completions, reinterpret_cast<layout::Completion*>(memory + layout::kCompletionOffset),
        layout::kRingCapacity);
  }
  ~TestSession() {
    end_bell();
    close_bell();
  }
  TestSession(const TestSession&) = delete;
  TestSession& operator=(const TestSession&) = delete;

  layout::SessionHeader* session() { return reinterpret_cast<layout::SessionHeader*>(memory_.get()); }
  int bell() const { return bell_[1]; }  // the client's end
  void end_bell() {                      // the daemon's end
    if (bell_[0] >= 0) {
      ::close(std::exchange(bell_[0], -1));
    }
  }
  void close_bell() {
    if (bell_[1] >= 0) {
      ::close(bell_[1]);
      bell_[1] = -1;
    }
  }
  LocalRank local() {
    LocalRank local;
    local.rank = rank_;
    local.session = session();
    local.bell_fd = bell_[0];
    local.memory = memory_;
    return local;
  }

  void submit(uint32_t bucket, uint64_t sequence, uint8_t operation, uint8_t dtype = 0) {
    layout::Submission submission{};
    submission.user_data = sequence * 1000 + bucket;
    submission.sequence = sequence;
    submission.scale = 1;
    submission.bucket = bucket;
    submission.operation = operation;
    submission.dtype = dtype;
    bool wake = false;
    submissions_.push(submission, &wake);
    if (wake) {
      const char ring = 1;
      [[maybe_unused]] const ssize_t sent =
          ::send(bell_[1], &ring, sizeof(ring), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }

  std::optional<layout::Completion> take() {
    layout::Completion completion;
    const bool there = completions_.pop(&completion) == layout::RingState::kOk;
    return there ? std::optional<layout::Completion>(completion) : std::nullopt;
  }
  // Sleeps until a completion comes; nothing after `timeout_ms`.
  std::optional<layout::Completion> wait(int timeout_ms) {
    for (;;) {
      if (const auto completion = take()) {
        return completion;
      }
      if (!completions_.prepare_sleep()) {
        continue;
      }
      pollfd waiting{bell_[1], POLLIN, 0};
      const int ready = ::poll(&waiting, 1, timeout_ms);
      completions_.cancel_sleep();
      if (ready != 1) {
        return std::nullopt;
      }
      char rung[64];
      [[maybe_unused]] const ssize_t got = ::recv(bell_[1], rung, sizeof(rung), MSG_DONTWAIT);
    }
  }

 private:
  const uint32_t rank_;
  int bell_[2] = {-1, -1};  // the daemon's end, the client's
  std::shared_ptr<std::byte> memory_;
  layout::RingProducer<layout::Submission> submissions_;
  layout::RingConsumer<layout::Completion> completions_;
};

}  // namespace gradwire::engine
