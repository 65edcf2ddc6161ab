// Memory that is shared with trainers and with `gradwire status`.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "daemon/control/counters_page.h"
#include "daemon/control/local_server.h"
#include "daemon/control/quota.h"
#include "daemon/control/shared_memory.h"
#include "daemon/control/trainer_buffers.h"

namespace gradwire::control {
namespace {

using ::testing::HasSubstr;

TEST(SharedMemory, OfAGradientIsWritableAndCannotChangeItsSize) {
  const auto memory = SharedMemory::create("g", 5000, Access::kBoth);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ((*memory)->bytes(), 8192u);
  const int fd = (*memory)->fd()->get();
  EXPECT_EQ(ftruncate(fd, 4096), -1);
  EXPECT_EQ(ftruncate(fd, 16384), -1);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 7, 8192);
  EXPECT_EQ(static_cast<char*>((*memory)->data())[8191], 7);
  munmap(mapped, 8192);
}

TEST(SharedMemory, OfAResultIsWritableForTheDaemonOnly) {
  const auto memory = SharedMemory::create("r", 0, Access::kReadOnly);
  ASSERT_TRUE(memory.ok());
  const int fd = (*memory)->fd()->get();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  char byte = 1;
  EXPECT_EQ(pwrite(fd, &byte, 1, 0), -1);
  void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(mprotect(mapped, 4096, PROT_READ | PROT_WRITE), -1);
  static_cast<char*>((*memory)->data())[5] = 9;
  EXPECT_EQ(static_cast<char*>(mapped)[5], 9);
  munmap(mapped, 4096);
}

TEST(SharedMemory, ThatIsNotToBeHadIsAnError) {
  const auto memory = SharedMemory::create("huge", uint64_t{1} << 60, Access::kBoth);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), Code::kResourceExhausted);
}

TEST(SharedMemory, OfASessionHasTheAgreedLayout) {
  const auto session = make_session_memory(3, 8, 17, std::make_shared<SocketReaper>(), 0);
  ASSERT_TRUE(session.ok());
  const layout::SessionHeader& header = *(*session)->header();
  EXPECT_EQ(header.magic, layout::kSessionMagic);
  EXPECT_EQ(header.generation, 17u);
  EXPECT_EQ(header.rank, 3u);
  EXPECT_GE(header.total_bytes, layout::kSessionBytes);
}

TEST(SharedMemory, OfASessionHasABellThatTheTrainerCannotMakeTheDaemonWaitAt) {
  const auto session = make_session_memory(0, 1, 1, std::make_shared<SocketReaper>(), 0);
  ASSERT_TRUE(session.ok());
  const int daemon = (*session)->bell();
  const int trainer = (*session)->trainer_bell->get();
  ASSERT_EQ(fcntl(trainer, F_SETFL, 0), 0);
  EXPECT_EQ(fcntl(daemon, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EXPECT_EQ(fcntl(daemon, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  int in_line = 0;
  socklen_t size = sizeof(in_line);
  ASSERT_EQ(getsockopt(daemon, SOL_SOCKET, SO_OOBINLINE, &in_line, &size), 0);
  EXPECT_EQ(in_line, 1) << "descriptors with urgent bytes are not seen";
  const char ring = 1;
  for (int rings = 0; send(daemon, &ring, 1, MSG_NOSIGNAL) == 1; ++rings) {
    ASSERT_LT(rings, 1'000'000);
  }
  EXPECT_EQ(errno, EAGAIN);
  (*session)->trainer_bell.reset();
  EXPECT_EQ(send(daemon, &ring, 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(Quota, IsPerUserAndComesBack) {
  config::QuotaOptions limits;
  limits.bytes_per_user = 100;
  limits.jobs_per_user = 1;
  limits.sessions_per_user = 1;
  const auto ledger = std::make_shared<QuotaLedger>(limits);
  auto first = ledger->charge_bytes(1, 60, "six tens");
  ASSERT_TRUE(first.ok());
  const auto refused = ledger->charge_bytes(1, 41, "2 x 20 + 1");
  EXPECT_THAT(refused.status().message(),
              HasSubstr("holds 60 bytes on this node and asks for 41 more (2 x 20 + 1)"));
  EXPECT_TRUE(ledger->charge_bytes(2, 100, "").ok());
  EXPECT_FALSE(ledger->charge_bytes(1, UINT64_MAX, "").ok());
  *first = nullptr;
  EXPECT_TRUE(ledger->charge_bytes(1, 100, "").ok());
  const auto job = ledger->charge_job(1);
  EXPECT_FALSE(ledger->charge_job(1).ok());
  auto rank = ledger->charge_session(1);
  ASSERT_TRUE(rank.ok());
  EXPECT_THAT(ledger->charge_session(1).status().message(), HasSubstr("quotas.sessions_per_user is 1"));
  EXPECT_TRUE(ledger->charge_session(2).ok());
  *rank = nullptr;
  EXPECT_TRUE(ledger->charge_session(1).ok());
}

TEST(TrainerBuffers, AreBoundedPerUserAndInAll) {
  TrainerBuffers buffers;
  const size_t most = TrainerBuffers::kPerUser;
  EXPECT_TRUE(buffers.change(1, 0, most));
  EXPECT_FALSE(buffers.change(1, 0, 1));
  EXPECT_TRUE(buffers.change(1, most, most - 1));
  EXPECT_TRUE(buffers.change(1, 0, 1));
  uint32_t uid = 2;
  for (size_t held = most; held < TrainerBuffers::kInAll; held += most) {
    EXPECT_TRUE(buffers.change(uid++, 0, most));
  }
  EXPECT_FALSE(buffers.change(uid, 0, 1));
  EXPECT_TRUE(buffers.change(1, most, 0));
  EXPECT_TRUE(buffers.change(uid, 0, 1));
}

class Runtime : public ::testing::Test {
 protected:
  Runtime() {
    char name[] = "/tmp/gradwire-control-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~Runtime() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(Runtime, DirectoryHasOneDaemonAtATime) {
  auto lock = lock_runtime_dir(directory_);
  ASSERT_TRUE(lock.ok());
  const auto second = lock_runtime_dir(directory_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr("pid " + std::to_string(getpid())));
  lock->reset();
  EXPECT_TRUE(lock_runtime_dir(directory_).ok());
}

TEST_F(Runtime, DirectoryThatIsMadeIsForTheTrainersOfAllUsers) {
  const mode_t before = umask(077);
  const auto lock = lock_runtime_dir(directory_ + "/made");
  umask(before);
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  EXPECT_EQ(std::filesystem::status(directory_ + "/made").permissions(), std::filesystem::perms{0755});
  // Whoever made it, the mode is his.
  std::filesystem::permissions(directory_, std::filesystem::perms{0711});
  ASSERT_TRUE(lock_runtime_dir(directory_).ok());
  EXPECT_EQ(std::filesystem::status(directory_).permissions(), std::filesystem::perms{0711});
}

TEST_F(Runtime, PlacesThatHoldSomethingElseAreNamedWithTheRemedy) {
  for (const char* name : {"gradwired.lock", "counters"}) {
    std::filesystem::create_directory(directory_ + "/" + name);
  }
  std::ofstream(directory_ + "/file") << "x";
  const auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  for (const Status& status : {lock_runtime_dir(directory_).status(),
                               lock_runtime_dir(directory_ + "/file").status(), page.status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("remove it or set another node.runtime_dir"));
  }
  EXPECT_THAT(page.status().message(), HasSubstr(directory_ + "/counters is a directory"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 3);
  std::filesystem::remove(directory_ + "/counters");
  ASSERT_EQ(mkfifo((directory_ + "/counters").c_str(), 0600), 0);
  EXPECT_THAT(CountersPage::create(directory_, "a", "0.1.0", "tcp").status().message(),
              HasSubstr("counters is not a file"));
}

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

TEST_F(Runtime, CountersShowJobsAndKeepTheEndedOnes) {
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

TEST_F(Runtime, CountersMakeRoomForTheLivingAndCountWhatDoesNotFit) {
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
TEST_F(Runtime, CountersShareTheirPlacesBetweenUsers) {
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

TEST_F(Runtime, CountersAreWrittenWhereTheyChangeAndNeighboursTogether) {
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

TEST_F(Runtime, CountersAreNeverSeenHalfWritten) {
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
  for (int tries = 0; good < 2000 && tries < 10'000'000; ++tries) {
    auto& job = const_cast<layout::JobRecord&>(reader.jobs()[good % 2]);
    const uint32_t before = job.version.load(std::memory_order_acquire);
    const uint64_t operations = std::atomic_ref<uint64_t>(job.operations).load(std::memory_order_acquire);
    const uint64_t raw = std::atomic_ref<uint64_t>(job.raw_bytes).load(std::memory_order_acquire);
    const uint32_t after = job.version.load(std::memory_order_acquire);
    if (before == after && before % 2 == 0) {
      ASSERT_EQ(operations, raw);
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
