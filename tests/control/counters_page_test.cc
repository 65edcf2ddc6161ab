// The counters page, as its readers see it.
#include "daemon/control/counters_page.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/control/runtime_directory.h"

namespace gradwire::control {
namespace {

using Counters = Runtime;

// A reader as `gradwire status` is one.
struct Reader {
  explicit Reader(const std::string& directory) {
    const wire::UniqueFd fd(open((directory + "/counters").c_str(), O_RDONLY | O_CLOEXEC));
    page = static_cast<const unsigned char*>(
        mmap(nullptr, layout::kCountersBytes, PROT_READ, MAP_SHARED, fd.get(), 0));
    locked = flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
  }
  ~Reader() { munmap(const_cast<unsigned char*>(page), layout::kCountersBytes); }
  template <typename Record>
  const Record* records(uint64_t offset) const {
    return reinterpret_cast<const Record*>(page + offset);
  }
  const layout::JobRecord* jobs() const { return records<layout::JobRecord>(sizeof(layout::CountersHeader)); }
  const unsigned char* page;
  bool locked;
};

JobFacts facts(uint64_t id) {
  JobFacts job;
  job.id = id;
  job.identity = {7, "train", "0"};
  job.state = layout::JobState::kRunning;
  job.world = 4;
  job.ranks = {{0, 11, layout::RankState::kAttached}, {1, 12, layout::RankState::kAttached}};
  job.peers = {{"b", "", "2,3", "b:7470", layout::PeerState::kUp, 5}};
  return job;
}

engine::JobSnapshot snapshot(uint64_t id, uint64_t operations) {
  engine::JobSnapshot job;
  job.id = id;
  job.operations = operations;
  job.raw_bytes = operations;
  job.buckets.resize(2);
  job.buckets[1].bucket = 1;
  job.buckets[1].name = std::make_shared<const std::string>("b0");
  return job;
}

TEST_F(Counters, ShowJobsAndKeepTheEndedOnes) {
  auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(page.ok()) << page.status().message();
  Reader reader(directory_);
  EXPECT_TRUE(reader.locked);
  const auto* header = reader.records<layout::CountersHeader>(0);
  EXPECT_EQ(header->magic, layout::kCountersMagic);
  EXPECT_STREQ(header->node, "a");
  (*page)->publish({facts(1)}, {snapshot(1, 3)}, 1000);
  EXPECT_EQ(header->heartbeat_ns.load(), 1000u);
  EXPECT_EQ(reader.jobs()[0].id, 1u);
  EXPECT_EQ(reader.jobs()[0].operations, 3u);
  JobFacts ended = facts(1);
  ended.state = layout::JobState::kAborted;
  ended.cause = "rank 3 died";
  (*page)->publish_ended(ended, snapshot(1, 4), 2000);
  (*page)->publish({}, {}, 3000);
  EXPECT_EQ(reader.jobs()[0].operations, 4u);
  EXPECT_STREQ(reader.jobs()[0].cause, "rank 3 died");
  (*page)->publish({}, {}, 700'000'000'000);
  EXPECT_EQ(reader.jobs()[0].id, 0u);
}

TEST_F(Counters, MakeRoomForTheLivingAndCountWhatDoesNotFit) {
  auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(page.ok());
  const Reader reader(directory_);
  for (uint64_t id = 1; id <= layout::kCounterJobs; ++id) {
    (*page)->publish_ended(facts(id), snapshot(id, 1), id);
  }
  (*page)->publish({facts(100)}, {snapshot(100, 1)}, 200);
  EXPECT_EQ(reader.jobs()[0].id, 100u);  // in the place of the one that ended first
  JobFacts crowd = facts(101);
  crowd.ranks.resize(2000);
  for (uint32_t rank = 0; rank < 2000; ++rank) {
    crowd.ranks[rank].rank = rank;
  }
  (*page)->publish({facts(100), crowd}, {snapshot(100, 1), snapshot(101, 1)}, 300);
  EXPECT_GT(reader.records<layout::CountersHeader>(0)->records_dropped.load(), 0u);
}

// One user fills every table; another one's job is shown all the same, and both keep what they have.
TEST_F(Counters, ShareTheirPlacesBetweenUsers) {
  auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(page.ok());
  const Reader reader(directory_);
  std::vector<JobFacts> jobs;
  std::vector<engine::JobSnapshot> snapshots;
  for (uint64_t id = 1; id <= 70; ++id) {
    JobFacts hog = facts(id);
    hog.ranks.resize(30);
    hog.peers.resize(30);
    for (uint32_t rank = 0; rank < 30; ++rank) {
      hog.ranks[rank].rank = rank;
    }
    engine::JobSnapshot snapshot;
    snapshot.id = id;
    snapshot.buckets.resize(2000);
    for (uint32_t bucket = 0; bucket < 2000; ++bucket) {
      snapshot.buckets[bucket].bucket = bucket + 1;
    }
    jobs.push_back(std::move(hog));
    snapshots.push_back(std::move(snapshot));
  }
  (*page)->publish(jobs, snapshots, 1);
  JobFacts small = facts(71);
  small.identity = {8, "small", "0"};
  jobs.push_back(small);
  snapshots.push_back(snapshot(71, 1));
  std::vector<std::byte> before;
  for (uint64_t round = 2; round < 5; ++round) {
    (*page)->publish(jobs, snapshots, round);
    uint64_t at = sizeof(layout::CountersHeader);
    size_t found = 0;
    const auto count = [&]<typename Record>(uint32_t places, const Record*, auto job_of) {
      for (uint32_t i = 0; i < places; ++i) {
        const auto* record = reader.records<Record>(at + i * sizeof(Record));
        found += record->id != 0 && job_of(*record) == 71 ? 1 : 0;
      }
      at += places * sizeof(Record);
    };
    const auto job_of = [](const auto& record) { return record.job; };
    count(layout::kCounterJobs, static_cast<const layout::JobRecord*>(nullptr),
          [](const layout::JobRecord& record) { return record.id; });
    count(layout::kCounterRanks, static_cast<const layout::RankRecord*>(nullptr), job_of);
    count(layout::kCounterBuckets, static_cast<const layout::BucketRecord*>(nullptr), job_of);
    count(layout::kCounterPeers, static_cast<const layout::PeerRecord*>(nullptr), job_of);
    EXPECT_EQ(found, 1U + 2U + 1U + 1U);
    EXPECT_GT(reader.records<layout::CountersHeader>(0)->records_dropped.load(), 0U);
    // Nobody changes places from one round to the next: only the heartbeat in the header does.
    const auto* bytes = reinterpret_cast<const std::byte*>(reader.page);
    std::vector<std::byte> now(bytes + sizeof(layout::CountersHeader), bytes + layout::kCountersBytes);
    EXPECT_TRUE(round == 2 || now == before);
    before = std::move(now);
  }
}

TEST_F(Counters, AreWrittenWhereTheyChangeAndNeighboursTogether) {
  auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(page.ok());
  const Reader reader(directory_);
  constexpr uint32_t kBuckets = 5000;
  const auto* records = reader.records<layout::BucketRecord>(
      sizeof(layout::CountersHeader) + layout::kCounterJobs * sizeof(layout::JobRecord) +
      layout::kCounterRanks * sizeof(layout::RankRecord));
  engine::JobSnapshot job;
  job.id = 1;
  job.buckets.resize(kBuckets);
  for (uint32_t i = 0; i < kBuckets; ++i) {
    job.buckets[i].bucket = i + 1;
  }
  uint64_t now = 0;
  // System calls of one publication, after which the page must say what the snapshot does.
  const auto calls = [&] {
    const uint64_t before = (*page)->write_calls();
    (*page)->publish({facts(1)}, {job}, ++now);
    for (uint32_t i = 0; i < kBuckets; ++i) {
      EXPECT_EQ(records[i].id, i + 2);
      EXPECT_EQ(records[i].operations, job.buckets[i].operations);
      EXPECT_EQ(records[i].version.load() % 2, 0U);
    }
    return (*page)->write_calls() - before;
  };
  constexpr uint64_t kHeartbeat = 1, kRecord = 3;
  EXPECT_LE(calls(), kHeartbeat + 4 * kRecord) << "a run in each table";
  for (engine::BucketSnapshot& bucket : job.buckets) {
    ++bucket.operations;
  }
  EXPECT_EQ(calls(), kHeartbeat + kRecord);
  EXPECT_EQ(calls(), kHeartbeat);
  const uint32_t untouched = records[11].version.load();
  for (const size_t i : {10U, 12U, 4000U}) {
    ++job.buckets[i].operations;
  }
  EXPECT_EQ(calls(), kHeartbeat + 2 * kRecord);
  EXPECT_EQ(records[11].version.load(), untouched);
}

TEST_F(Counters, AreNeverSeenHalfWritten) {
  auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(page.ok());
  Reader reader(directory_);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t n = 1; !stop.load(std::memory_order_relaxed); ++n) {
      (*page)->publish({facts(1), facts(2)}, {snapshot(1, n), snapshot(2, n)}, n);
    }
  });
  int good = 0;
  bool torn = false;
  for (int tries = 0; !torn && good < 2000 && tries < 10'000'000; ++tries) {
    auto& job = const_cast<layout::JobRecord&>(reader.jobs()[good % 2]);
    const uint32_t before = job.version.load(std::memory_order_acquire);
    const uint64_t operations = std::atomic_ref<uint64_t>(job.operations).load(std::memory_order_acquire);
    const uint64_t raw = std::atomic_ref<uint64_t>(job.raw_bytes).load(std::memory_order_acquire);
    const uint32_t after = job.version.load(std::memory_order_acquire);
    if (before == after && before % 2 == 0) {
      EXPECT_EQ(operations, raw);
      torn = torn || operations != raw;
      ++good;
    } else {
      std::this_thread::yield();  // the writer may have been stopped in the middle of a record
    }
  }
  stop.store(true, std::memory_order_relaxed);
  writer.join();
  EXPECT_EQ(good, 2000);
}

}  // namespace
}  // namespace gradwire::control
