// The fake daemon's memory, rings and arithmetic.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

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
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bell), 0);
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
    reduce(bucket);
  }
  for (Rank* rank : ranks) {
    const Submission submission = rank->pending[bucket];
    rank->pending.erase(bucket);
    operations_ += submission.operation == layout::kOpAllreduce && rank == ranks.front() ? 1 : 0;
    publish(rank, submission);
  }
}

template <typename Element>
void sum_or_average(const std::vector<const char*>& inputs, uint64_t elements, bool average, char* result) {
  for (uint64_t i = 0; i < elements; ++i) {
    Element sum = 0;
    for (const char* input : inputs) {
      sum += reinterpret_cast<const Element*>(input)[i];
    }
    reinterpret_cast<Element*>(result)[i] = average ? sum / static_cast<Element>(inputs.size()) : sum;
  }
}

void FakeDaemon::reduce(uint32_t id) {
  Bucket& bucket = buckets_[id];
  const auto ranks = joined();
  const Submission& submission = ranks.front()->pending[id];
  std::vector<const char*> inputs;
  for (Rank* rank : ranks) {
    if (submission.operation != layout::kOpBroadcast || rank->rank == submission.root) {
      inputs.push_back(rank->gradients[id]->address);
    }
  }
  const bool average = submission.operation == layout::kOpAllreduce && submission.reduce_op == 1;
  if (bucket.dtype == 4) {
    sum_or_average<int32_t>(inputs, bucket.elements, average, bucket.result.address);
  } else {
    sum_or_average<float>(inputs, bucket.elements, average, bucket.result.address);
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
