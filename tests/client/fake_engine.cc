// The fake daemon's memory, rings and arithmetic.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tests/client/fake_daemon.h"

namespace gradwire::client {

using layout::Completion;
using layout::SessionHeader;
using layout::Submission;

FakeDaemon::Memory::~Memory() {
  if (address != nullptr) {
    ::munmap(address, mapped);
  }
}

void FakeDaemon::make_memory(Memory* memory, uint64_t bytes, bool seal) {
  memory->fd.reset(::memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(memory->fd.get(), static_cast<off_t>(bytes)), 0);
  memory->mapped = bytes;
  memory->address =
      static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd.get(), 0));
  EXPECT_NE(memory->address, MAP_FAILED);
  if (seal) {
    EXPECT_EQ(::fcntl(memory->fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  }
}

void FakeDaemon::create_session(Rank* rank) {
  make_memory(
      &rank->session,
      static_cast<uint64_t>(static_cast<int64_t>(layout::kSessionBytes) + behaviour_.extra_session_bytes),
      behaviour_.seal);
  int bell[2] = {-1, -1};
  EXPECT_EQ(behaviour_.bell_is_a_pipe ? ::pipe2(bell, O_CLOEXEC)
                                      : ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bell),
            0);
  rank->bell.reset(bell[0]);
  rank->trainers_bell.reset(bell[1]);
  rank->joined = true;
  auto* header = new (rank->session.address) SessionHeader{};
  header->magic = behaviour_.magic;
  header->layout_version = behaviour_.memory_layout;
  header->ring_capacity = layout::kRingCapacity;
  header->total_bytes = layout::kSessionBytes;
  header->generation = 1;
  header->submission_offset = layout::kSubmissionOffset;
  header->completion_offset = layout::kCompletionOffset;
  header->rank = rank->rank;
  header->world = rank->world;
  rank->header = header;
  if (behaviour_.extra_session_bytes < 0) {
    return;  // too short for its rings: the client must refuse it
  }
  rank->submissions = {&header->submissions,
                       reinterpret_cast<Submission*>(rank->session.address + layout::kSubmissionOffset),
                       layout::kRingCapacity};
  rank->completions = {&header->completions,
                       reinterpret_cast<Completion*>(rank->session.address + layout::kCompletionOffset),
                       layout::kRingCapacity};
}

void FakeDaemon::beat() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  for (Rank* rank : joined()) {
    // Relaxed: as the engine does it.
    rank->header->daemon_heartbeat_ns.store(static_cast<uint64_t>(ns), std::memory_order_relaxed);
  }
}

bool FakeDaemon::serve_rings() {
  bool any = false;
  for (Rank* rank : joined()) {
    if (behaviour_.extra_session_bytes < 0) {
      continue;
    }
    Submission submission;
    while (rank->submissions.pop(&submission) == layout::RingState::kOk) {
      any = true;
      rank->pending[submission.bucket] = submission;
      if (behaviour_.complete) {
        try_complete(submission.bucket);
      }
    }
  }
  return any;
}

bool FakeDaemon::prepare_sleep() {
  for (Rank* rank : joined()) {
    if (behaviour_.extra_session_bytes >= 0 && !rank->submissions.prepare_sleep()) {
      return false;
    }
  }
  return true;
}

void FakeDaemon::try_complete(uint32_t bucket) {
  const auto ranks = joined();
  for (Rank* rank : ranks) {
    if (!rank->pending.contains(bucket)) {
      return;
    }
  }
  if (ranks.empty()) {
    return;
  }
  if (bucket != 0) {
    operate(bucket);
  }
  for (Rank* rank : ranks) {
    const Submission submission = rank->pending[bucket];
    rank->pending.erase(bucket);
    if (rank == ranks.front()) {
      flags_.push_back(submission.flags);
    }
    operations_ += submission.operation == layout::kOpAllreduce && rank == ranks.front() ? 1 : 0;
    publish(rank, submission);
  }
}

namespace {

constexpr uint64_t kSizes[] = {4, 2, 2, 8, 4, 8, 1};

template <typename Element>
Element combine(uint8_t op, Element a, Element b) {
  switch (op) {
    case 2:
      return std::min(a, b);
    case 3:
      return std::max(a, b);
    case 4:
      return static_cast<Element>(a * b);
    default:
      return static_cast<Element>(a + b);
  }
}

template <typename Element>
void reduce(const std::vector<const char*>& inputs, uint64_t elements, uint8_t op, char* result) {
  for (uint64_t i = 0; i < elements; ++i) {
    Element value = reinterpret_cast<const Element*>(inputs[0])[i];
    for (size_t k = 1; k < inputs.size(); ++k) {
      value = combine(op, value, reinterpret_cast<const Element*>(inputs[k])[i]);
    }
    reinterpret_cast<Element*>(result)[i] =
        op == 1 ? static_cast<Element>(value / static_cast<Element>(inputs.size())) : value;
  }
}

void reduce_any(uint8_t dtype, const std::vector<const char*>& inputs, uint64_t elements, uint8_t op,
                char* result) {
  switch (dtype) {
    case 0:
      return reduce<float>(inputs, elements, op, result);
    case 3:
      return reduce<double>(inputs, elements, op, result);
    case 4:
      return reduce<int32_t>(inputs, elements, op, result);
    case 5:
      return reduce<int64_t>(inputs, elements, op, result);
    case 6:
      return reduce<uint8_t>(inputs, elements, op, result);
    default:
      std::memcpy(result, inputs[0], elements * kSizes[dtype]);
  }
}

}  // namespace

void FakeDaemon::operate(uint32_t id) {
  Bucket& bucket = buckets_[id];
  const Submission submission = joined().front()->pending[id];
  const uint64_t width = kSizes[bucket.dtype];
  std::map<uint32_t, const char*> inputs;  // by rank
  for (Rank* rank : joined()) {
    inputs[rank->rank] = rank->gradients[id]->address;
  }
  if (submission.operation == layout::kOpBroadcast) {
    std::memcpy(bucket.result.address, inputs[submission.root], bucket.elements * width);
  } else if (submission.operation == layout::kOpAllgather) {
    const uint64_t shard = bucket.elements / inputs.size() * width;
    for (const auto& [rank, input] : inputs) {
      std::memcpy(bucket.result.address + rank * shard, input + rank * shard, shard);
    }
  } else {
    std::vector<const char*> all;
    for (const auto& [rank, input] : inputs) {
      all.push_back(input);
    }
    reduce_any(bucket.dtype, all, bucket.elements, submission.reduce_op, bucket.result.address);
  }
}

void FakeDaemon::publish(Rank* rank, const Submission& submission) {
  Completion completion{};
  completion.user_data = submission.user_data;
  completion.sequence = submission.sequence;
  completion.bucket = submission.bucket;
  completion.status = behaviour_.completion_status;
  if (behaviour_.edit_completion) {
    behaviour_.edit_completion(&completion);
  }
  bool wake = false;
  EXPECT_EQ(rank->completions.push(completion, &wake), layout::RingState::kOk);
  if (wake) {
    const char ring = 0;
    (void)!::send(rank->bell.get(), &ring, sizeof(ring), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

}  // namespace gradwire::client
