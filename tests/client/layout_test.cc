// The shared memory against a picture of it written by hand from the documentation: (field, offset, size).
// A change here is a new layout version.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "client/layout/counters_layout.h"
#include "client/layout/ring.h"
#include "client/layout/session_layout.h"

namespace gradwire::layout {
namespace {

struct Field {
  const char* name;
  size_t offset, size;
  size_t expected_offset, expected_size;
};

#define FIELD(type, field, expected_offset, expected_size)                                       \
  Field {                                                                                        \
#type "." #field, offsetof(type, field), sizeof(type::field), expected_offset, expected_size \
  }

void expect_picture(const std::vector<Field>& fields, size_t total, size_t expected_total) {
  for (const Field& field : fields) {
    EXPECT_EQ(field.offset, field.expected_offset) << field.name;
    EXPECT_EQ(field.size, field.expected_size) << field.name;
  }
  EXPECT_EQ(total, expected_total);
}

TEST(SessionLayout, SubmissionIsAsDrawn) {
  expect_picture(
      {FIELD(Submission, user_data, 0, 8), FIELD(Submission, sequence, 8, 8), FIELD(Submission, scale, 16, 8),
       FIELD(Submission, bucket, 24, 4), FIELD(Submission, root, 28, 4), FIELD(Submission, operation, 32, 1),
       FIELD(Submission, reduce_op, 33, 1), FIELD(Submission, dtype, 34, 1), FIELD(Submission, flags, 35, 1),
       FIELD(Submission, reserved, 36, 28)},
      sizeof(Submission), 64);
}

TEST(SessionLayout, CompletionIsAsDrawn) {
  expect_picture({FIELD(Completion, user_data, 0, 8), FIELD(Completion, sequence, 8, 8),
                  FIELD(Completion, bucket, 16, 4), FIELD(Completion, status, 20, 4),
                  FIELD(Completion, result_slot, 24, 4), FIELD(Completion, flags, 28, 4),
                  FIELD(Completion, reserved, 32, 32)},
                 sizeof(Completion), 64);
}

TEST(SessionLayout, RingControlHasOneCounterACacheLine) {
  expect_picture(
      {FIELD(RingControl, tail, 0, 8), FIELD(RingControl, head, 64, 8), FIELD(RingControl, sleeping, 128, 4)},
      sizeof(RingControl), 192);
}

TEST(SessionLayout, HeaderIsAsDrawn) {
  expect_picture(
      {FIELD(SessionHeader, magic, 0, 8), FIELD(SessionHeader, layout_version, 8, 4),
       FIELD(SessionHeader, ring_capacity, 12, 4), FIELD(SessionHeader, total_bytes, 16, 8),
       FIELD(SessionHeader, generation, 24, 8), FIELD(SessionHeader, submission_offset, 32, 4),
       FIELD(SessionHeader, completion_offset, 36, 4), FIELD(SessionHeader, rank, 40, 4),
       FIELD(SessionHeader, world, 44, 4), FIELD(SessionHeader, abort_status, 64, 4),
       FIELD(SessionHeader, abort_cause, 128, 1024), FIELD(SessionHeader, daemon_heartbeat_ns, 1152, 8),
       FIELD(SessionHeader, submissions, 1216, 192), FIELD(SessionHeader, completions, 1408, 192)},
      sizeof(SessionHeader), 1600);
  EXPECT_EQ(kSubmissionOffset, 4096u);
  EXPECT_EQ(kCompletionOffset, 4096u + 4096u * 64u);
  EXPECT_EQ(kSessionBytes, 4096u + 2u * 4096u * 64u);
}

TEST(SessionLayout, TheMarkReadsGwire001InMemory) {
  const uint64_t magic = kSessionMagic;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(&magic), 8), "GWIRE001");
  EXPECT_EQ(kLayoutVersion, 2u);
  EXPECT_EQ(kCountersVersion, 3u);
}

TEST(SessionLayout, OperationNumbersNeverChange) {
  EXPECT_EQ(kOpAllreduce, 1);
  EXPECT_EQ(kOpBroadcast, 2);
  EXPECT_EQ(kOpBarrier, 3);
  EXPECT_EQ(kOpAllgather, 4);
  EXPECT_EQ(kOpReduceScatter, 5);
  EXPECT_EQ(kCompletionNotFinite, 1u);
}

TEST(CountersLayout, HeaderIsAsDrawn) {
  expect_picture({FIELD(CountersHeader, magic, 0, 8),
                  FIELD(CountersHeader, layout_version, 8, 4),
                  FIELD(CountersHeader, header_bytes, 12, 4),
                  FIELD(CountersHeader, jobs, 16, 4),
                  FIELD(CountersHeader, ranks, 20, 4),
                  FIELD(CountersHeader, buckets, 24, 4),
                  FIELD(CountersHeader, peers, 28, 4),
                  FIELD(CountersHeader, job_bytes, 32, 4),
                  FIELD(CountersHeader, rank_bytes, 36, 4),
                  FIELD(CountersHeader, bucket_bytes, 40, 4),
                  FIELD(CountersHeader, peer_bytes, 44, 4),
                  FIELD(CountersHeader, pid, 48, 4),
                  FIELD(CountersHeader, started_monotonic_ns, 56, 8),
                  FIELD(CountersHeader, started_unix_ns, 64, 8),
                  FIELD(CountersHeader, heartbeat_ns, 72, 8),
                  FIELD(CountersHeader, version, 80, 32),
                  FIELD(CountersHeader, node, 112, 256),
                  FIELD(CountersHeader, transport, 368, 32),
                  FIELD(CountersHeader, records_dropped, 400, 8),
                  FIELD(CountersHeader, stopped_unix_ns, 408, 8),
                  FIELD(CountersHeader, kept_bytes, 416, 8),
                  FIELD(CountersHeader, kept_jobs, 424, 8)},
                 sizeof(CountersHeader), 448);
}

TEST(CountersLayout, JobRecordIsAsDrawn) {
  expect_picture(
      {FIELD(JobRecord, version, 0, 4), FIELD(JobRecord, state, 4, 4), FIELD(JobRecord, id, 8, 8),
       FIELD(JobRecord, name, 16, 128), FIELD(JobRecord, run_id, 144, 128), FIELD(JobRecord, uid, 272, 4),
       FIELD(JobRecord, world, 276, 4), FIELD(JobRecord, nodes, 280, 4), FIELD(JobRecord, node_index, 284, 4),
       FIELD(JobRecord, epoch, 288, 8), FIELD(JobRecord, operations, 296, 8),
       FIELD(JobRecord, raw_bytes, 304, 8), FIELD(JobRecord, payload_bytes, 312, 8),
       FIELD(JobRecord, header_bytes, 320, 8), FIELD(JobRecord, cause, 328, 512),
       FIELD(JobRecord, ended_ns, 840, 8), FIELD(JobRecord, stall, 848, 512)},
      sizeof(JobRecord), 1408);
}

TEST(CountersLayout, RankRecordIsAsDrawn) {
  expect_picture(
      {FIELD(RankRecord, version, 0, 4), FIELD(RankRecord, state, 4, 4), FIELD(RankRecord, id, 8, 8),
       FIELD(RankRecord, job, 16, 8), FIELD(RankRecord, rank, 24, 4), FIELD(RankRecord, pid, 28, 4),
       FIELD(RankRecord, submissions, 32, 8), FIELD(RankRecord, late_total_ns, 40, 8),
       FIELD(RankRecord, late_max_ns, 48, 8), FIELD(RankRecord, late_count, 56, 8)},
      sizeof(RankRecord), 64);
}

TEST(CountersLayout, BucketRecordIsAsDrawn) {
  expect_picture({FIELD(BucketRecord, version, 0, 4),
                  FIELD(BucketRecord, phase, 4, 4),
                  FIELD(BucketRecord, id, 8, 8),
                  FIELD(BucketRecord, job, 16, 8),
                  FIELD(BucketRecord, bucket, 24, 4),
                  FIELD(BucketRecord, dtype, 28, 4),
                  FIELD(BucketRecord, name, 32, 128),
                  FIELD(BucketRecord, codec, 160, 16),
                  FIELD(BucketRecord, elements, 176, 8),
                  FIELD(BucketRecord, sequence, 184, 8),
                  FIELD(BucketRecord, operations, 192, 8),
                  FIELD(BucketRecord, not_finite, 200, 8),
                  FIELD(BucketRecord, raw_bytes, 208, 8),
                  FIELD(BucketRecord, payload_bytes, 216, 8),
                  FIELD(BucketRecord, header_bytes, 224, 8),
                  FIELD(BucketRecord, received_bytes, 232, 8),
                  FIELD(BucketRecord, residual_bytes, 240, 8),
                  FIELD(BucketRecord, density, 248, 8),
                  FIELD(BucketRecord, residual_norm, 256, 8),
                  FIELD(BucketRecord, warm_stage, 264, 4),
                  FIELD(BucketRecord, missing_ranks, 268, 4),
                  FIELD(BucketRecord, last_ns, 272, 8),
                  FIELD(BucketRecord, total_ns, 280, 8),
                  FIELD(BucketRecord, gather_total_ns, 288, 8),
                  FIELD(BucketRecord, hop, 296, 4),
                  FIELD(BucketRecord, hops, 300, 4),
                  FIELD(BucketRecord, waits_for_node, 304, 4),
                  FIELD(BucketRecord, operation, 308, 4),
                  FIELD(BucketRecord, plan, 312, 72),
                  FIELD(BucketRecord, expected_ns, 384, 8),
                  FIELD(BucketRecord, exact_ns, 392, 8),
                  FIELD(BucketRecord, plan_operations, 400, 8),
                  FIELD(BucketRecord, plan_total_ns, 408, 8),
                  FIELD(BucketRecord, saved_ns, 416, 8),
                  FIELD(BucketRecord, plan_changes, 424, 4)},
                 sizeof(BucketRecord), 448);
}

TEST(CountersLayout, PeerRecordIsAsDrawn) {
  expect_picture(
      {FIELD(PeerRecord, version, 0, 4), FIELD(PeerRecord, state, 4, 4), FIELD(PeerRecord, id, 8, 8),
       FIELD(PeerRecord, job, 16, 8), FIELD(PeerRecord, node, 24, 128), FIELD(PeerRecord, ranks, 152, 128),
       FIELD(PeerRecord, address, 280, 128), FIELD(PeerRecord, path, 408, 32),
       FIELD(PeerRecord, heartbeat_ns, 440, 8), FIELD(PeerRecord, node_index, 448, 4)},
      sizeof(PeerRecord), 512);
  const uint64_t magic = kCountersMagic;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(&magic), 8), "GWRCTN01");
  EXPECT_EQ(kCountersBytes, 448u + 64u * 1408u + 512u * 64u + 8192u * 448u + 512u * 512u);
}

struct Ring {
  RingControl control{};
  std::vector<Completion> slots = std::vector<Completion>(8);
  RingProducer<Completion> producer{&control, slots.data(), 8};
  RingConsumer<Completion> consumer{&control, slots.data(), 8};
};

TEST(Ring, IsFullAfterItsCapacityAndKeepsTheOrder) {
  Ring ring;
  Completion entry{};
  bool wake = true;
  EXPECT_EQ(ring.consumer.pop(&entry), RingState::kEmpty);
  for (uint64_t round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < 8; ++i) {
      entry.sequence = 100 * round + i;
      ASSERT_EQ(ring.producer.push(entry, &wake), RingState::kOk);
      EXPECT_FALSE(wake);
    }
    EXPECT_EQ(ring.producer.push(entry, &wake), RingState::kFull);
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_EQ(ring.consumer.pop(&entry), RingState::kOk);
      EXPECT_EQ(entry.sequence, 100 * round + i);
    }
  }
}

TEST(Ring, ASleeperIsWokenOnceAndNeverSleepsOnWork) {
  Ring ring;
  Completion entry{};
  bool wake = false;
  EXPECT_TRUE(ring.consumer.prepare_sleep());
  EXPECT_EQ(ring.producer.push(entry, &wake), RingState::kOk);
  EXPECT_TRUE(wake);
  EXPECT_EQ(ring.producer.push(entry, &wake), RingState::kOk);
  EXPECT_FALSE(wake);
  EXPECT_FALSE(ring.consumer.prepare_sleep());
}

TEST(Ring, ACounterThatMakesNoSenseIsCorrupt) {
  Ring ring;
  Completion entry{};
  bool wake = false;
  ring.control.tail.store(9, std::memory_order_relaxed);
  EXPECT_EQ(ring.consumer.pop(&entry), RingState::kCorrupt);
  ring.control.head.store(3, std::memory_order_relaxed);
  EXPECT_EQ(ring.producer.push(entry, &wake), RingState::kCorrupt);
}

TEST(Ring, TwoThreadsMoveEveryEntryInOrder) {
  Ring ring;
  constexpr uint64_t kEntries = 50'000;
  std::thread producer([&] {
    Completion entry{};
    bool wake = false;
    for (uint64_t i = 0; i < kEntries;) {
      entry.sequence = i;
      if (ring.producer.push(entry, &wake) == RingState::kOk) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  Completion entry{};
  for (uint64_t i = 0; i < kEntries;) {
    if (ring.consumer.pop(&entry) == RingState::kOk) {
      ASSERT_EQ(entry.sequence, i);
      ++i;
    } else {
      std::this_thread::yield();
    }
  }
  producer.join();
}

}  // namespace
}  // namespace gradwire::layout
