// A session's memory and the client's side of it, with eventfds, for tests that run real threads.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "client/layout/ring.h"
#include "daemon/engine/engine.h"

namespace gradwire::engine {

class TestSession {
 public:
  explicit TestSession(uint32_t rank)
      : rank_(rank),
        wake_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        submit_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
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
    ::close(wake_fd_);
    ::close(submit_fd_);
  }
  TestSession(const TestSession&) = delete;
  TestSession& operator=(const TestSession&) = delete;

  layout::SessionHeader* session() { return reinterpret_cast<layout::SessionHeader*>(memory_.get()); }
  LocalRank local() {
    LocalRank local;
    local.rank = rank_;
    local.session = session();
    local.wake_fd = wake_fd_;
    local.submit_fd = submit_fd_;
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
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(submit_fd_, &one, sizeof(one));
    }
  }

  // Sleeps until a completion comes; nothing after `timeout_ms`.
  std::optional<layout::Completion> wait(int timeout_ms) {
    for (;;) {
      layout::Completion completion;
      if (completions_.pop(&completion) == layout::RingState::kOk) {
        return completion;
      }
      if (!completions_.prepare_sleep()) {
        continue;
      }
      pollfd waiting{wake_fd_, POLLIN, 0};
      const int ready = ::poll(&waiting, 1, timeout_ms);
      completions_.cancel_sleep();
      if (ready != 1) {
        return std::nullopt;
      }
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = ::read(wake_fd_, &ignored, sizeof(ignored));
    }
  }

 private:
  const uint32_t rank_;
  const int wake_fd_, submit_fd_;
  std::shared_ptr<std::byte> memory_;
  layout::RingProducer<layout::Submission> submissions_;
  layout::RingConsumer<layout::Completion> completions_;
};

}  // namespace gradwire::engine
