// The file of the counters page, which others may delete, cut or replace at any time.
#include "daemon/control/counters_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "daemon/control/counters_page.h"
#include "tests/control/runtime_directory.h"

namespace gradwire::control {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMagicBytes = sizeof(layout::kCountersMagic);

class CountersFiles : public Runtime {
 protected:
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool shows(const std::string& text) const {
    const std::string all = content();
    return all.size() == layout::kCountersBytes && all.compare(kMagicBytes, text.size(), text) == 0;
  }
  // As many files as the page is made of: leftovers would pile up.
  ptrdiff_t files() const { return std::distance(std::filesystem::directory_iterator(directory_), {}); }

  std::string path_ = directory_ + "/counters";
};

std::unique_ptr<CountersFile> filled(const std::string& directory, const std::string& text) {
  auto file = std::make_unique<CountersFile>(directory);
  std::memcpy(file->image(), &layout::kCountersMagic, kMagicBytes);
  std::memcpy(file->image() + kMagicBytes, text.data(), text.size());
  return file;
}

TEST_F(CountersFiles, AreWholeReadableAndLocked) {
  const auto file = filled(directory_, "abc");
  ASSERT_TRUE(file->install(0).ok());
  EXPECT_TRUE(shows("abc"));
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0644U);
  const wire::UniqueFd reader(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_NE(flock(reader.get(), LOCK_SH | LOCK_NB), 0);
  EXPECT_EQ(files(), 1);
}

TEST_F(CountersFiles, AreNeverTakenFromALivingDaemon) {
  const auto first = filled(directory_, "first");
  ASSERT_TRUE(first->install(0).ok());
  const auto second = filled(directory_, "second");
  const Status status = second->install(20);
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("another gradwired (pid"));
  EXPECT_THAT(status.message(), HasSubstr("node.runtime_dir"));
  EXPECT_TRUE(shows("first"));
  EXPECT_EQ(files(), 1);
}

TEST_F(CountersFiles, ReplaceWhatADeadDaemonLeft) {
  ASSERT_TRUE(filled(directory_, "dead")->install(0).ok());
  ASSERT_TRUE(filled(directory_, "alive")->install(0).ok());
  EXPECT_TRUE(shows("alive"));
  // Pages of another version, cut off anywhere, and one that is as long as it was but has lost its content.
  for (const char* left : {"GWRCTN77 of the future", "GWRCTN01", "GWRCTN", "GWR", "G", ""}) {
    std::ofstream(path_, std::ios::trunc) << left;
    ASSERT_TRUE(filled(directory_, "alive")->install(0).ok()) << left;
    EXPECT_TRUE(shows("alive"));
  }
  std::ofstream(path_, std::ios::trunc) << "";
  std::filesystem::resize_file(path_, layout::kCountersBytes);
  ASSERT_TRUE(filled(directory_, "alive")->install(0).ok());
  EXPECT_TRUE(shows("alive"));
}

TEST_F(CountersFiles, AreNotPutInThePlaceOfSomethingElse) {
  const auto refused = [&] {
    const Status status = filled(directory_, "alive")->install(0);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(path_ + " is "));
    EXPECT_THAT(status.message(), HasSubstr("remove it or set another node.runtime_dir"));
  };
  for (const std::string& text : {std::string("x"), std::string("GWRCTM01"), std::string(8, '\0')}) {
    std::ofstream(path_, std::ios::trunc) << text;
    refused();
    EXPECT_EQ(content(), text);
  }
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/nonexistent", path_);
  refused();
  EXPECT_TRUE(std::filesystem::is_symlink(std::filesystem::symlink_status(path_)));
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  refused();
  EXPECT_EQ(files(), 1);
}

TEST_F(CountersFiles, LetADeletedPageGoBeforeTheNextOneIsMade) {
  const auto file = filled(directory_, "abc");
  ASSERT_TRUE(file->install(0).ok());
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_FALSE(file->check().ok());
  file->write(0, 3);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    EXPECT_FALSE(target.starts_with(path_)) << target;
  }
  std::filesystem::remove(path_);
  EXPECT_TRUE(file->check().ok());
  EXPECT_TRUE(shows("abc"));
}

TEST_F(CountersFiles, WaitForAReaderThatTriesTheLock) {
  ASSERT_TRUE(filled(directory_, "dead")->install(0).ok());
  wire::UniqueFd reader(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(reader.get(), LOCK_SH | LOCK_NB), 0);
  const auto file = filled(directory_, "alive");
  EXPECT_EQ(file->install(0).code(), Code::kAlreadyExists);
  EXPECT_EQ(files(), 1);
  Status status(Code::kInternal, "install() did not return");
  std::thread installing([&] { status = file->install(60'000); });
  for (int looks = 0; files() < 2 && looks < 20'000;
       ++looks) {  // its file is there before it asks for the lock
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(files(), 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(shows("dead"));
  reader.reset();
  installing.join();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(shows("alive"));
}

TEST_F(CountersFiles, ComeBackAfterWhateverHappensToThem) {
  const auto file = filled(directory_, "abc");
  ASSERT_TRUE(file->install(0).ok());
  const auto check = [&] {
    const auto repaired = file->check();
    EXPECT_TRUE(repaired.ok()) << repaired.status().message();
    return repaired.ok() && *repaired;
  };
  EXPECT_FALSE(check());
  for (const off_t bytes : {0, 1, 4096, 100}) {
    ASSERT_EQ(truncate(path_.c_str(), bytes), 0);
    file->write(0, 3);  // must not be the end of us
    EXPECT_TRUE(check());
    EXPECT_TRUE(shows("abc"));
  }
  ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(layout::kCountersBytes) * 2), 0);
  EXPECT_TRUE(check());
  ASSERT_EQ(unlink(path_.c_str()), 0);
  EXPECT_TRUE(check());
  EXPECT_TRUE(shows("abc"));
  std::ofstream(directory_ + "/other") << "x";
  std::filesystem::rename(directory_ + "/other", path_);
  EXPECT_TRUE(check());
  EXPECT_TRUE(shows("abc"));
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/nonexistent", path_);
  EXPECT_TRUE(check());
  EXPECT_TRUE(shows("abc"));
  EXPECT_FALSE(check());
  EXPECT_EQ(files(), 1);
}

TEST_F(CountersFiles, SayWhyTheyCannotBeMade) {
  const auto file = filled(directory_ + "/missing", "abc");
  const Status status = file->install(0);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("No such file"));
  std::filesystem::create_directory(path_);
  EXPECT_FALSE(filled(directory_, "abc")->install(0).ok());
}

// The page's fields beyond those that memory_test.cc looks at.
class CountersFields : public CountersFiles {
 protected:
  uint64_t number(uint64_t offset, size_t bytes) const {
    uint64_t value = 0;
    std::memcpy(&value, content().data() + offset, bytes);
    return value;
  }
  std::string text(uint64_t offset) const { return content().c_str() + offset; }
};

constexpr uint64_t kJobsAt = sizeof(layout::CountersHeader);
constexpr uint64_t kRanksAt = kJobsAt + layout::kCounterJobs * sizeof(layout::JobRecord);
constexpr uint64_t kBucketsAt = kRanksAt + layout::kCounterRanks * sizeof(layout::RankRecord);
constexpr uint64_t kPeersAt = kBucketsAt + layout::kCounterBuckets * sizeof(layout::BucketRecord);

#define EXPECT_FIELD(Record, at, field, wanted) \
  EXPECT_EQ(number((at) + offsetof(layout::Record, field), sizeof(layout::Record::field)), wanted)

TEST_F(CountersFields, ShowHopsStallsLatenessAndNodes) {
  auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(page.ok());
  JobFacts job;
  job.id = 3;
  job.identity = {7, "train", "0"};
  job.state = layout::JobState::kRunning;
  job.stall = "waits for rank 1";
  job.ranks = {{0, 11, layout::RankState::kAttached}};
  job.peers = {{"b", "", "2,3", "b:7470", layout::PeerState::kUp, 5, 1}};
  engine::JobSnapshot snapshot;
  snapshot.id = 3;
  snapshot.ranks.resize(1);
  snapshot.ranks[0].late_count = 17;
  snapshot.buckets.resize(1);
  snapshot.buckets[0].bucket = 1;
  snapshot.buckets[0].hop = 2;
  snapshot.buckets[0].hops = 6;
  snapshot.buckets[0].waits_for_node = 4;
  snapshot.buckets[0].operation = layout::kOpBroadcast;
  (*page)->publish({job}, {snapshot}, 1000);
  (*page)->set_kept(4096, 2);
  // The free places are handed out from the first on.
  EXPECT_EQ(text(kJobsAt + offsetof(layout::JobRecord, stall)), "waits for rank 1");
  EXPECT_FIELD(JobRecord, kJobsAt, ended_ns, 0u);
  EXPECT_FIELD(RankRecord, kRanksAt, late_count, 17u);
  EXPECT_FIELD(BucketRecord, kBucketsAt, hop, 2u);
  EXPECT_FIELD(BucketRecord, kBucketsAt, hops, 6u);
  EXPECT_FIELD(BucketRecord, kBucketsAt, waits_for_node, 4u);
  EXPECT_FIELD(BucketRecord, kBucketsAt, operation, uint64_t{layout::kOpBroadcast});
  EXPECT_FIELD(PeerRecord, kPeersAt, node_index, 1u);
  EXPECT_FIELD(CountersHeader, 0, kept_bytes, 4096u);
  EXPECT_FIELD(CountersHeader, 0, kept_jobs, 2u);
}

TEST_F(CountersFields, TellAnEndedJobFromALivingOneForAMinute) {
  auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(page.ok());
  JobFacts job;
  job.id = 1;
  job.identity = {7, "train", "0"};
  job.state = layout::JobState::kAborted;
  job.cause = "rank 3 died";
  job.stall = "waits for rank 3";
  (*page)->publish_ended(job, {}, 5'000);
  EXPECT_FIELD(JobRecord, kJobsAt, ended_ns, 5'000u);
  EXPECT_EQ(text(kJobsAt + offsetof(layout::JobRecord, stall)), "");
  (*page)->publish({}, {}, 59'000'000'000);
  EXPECT_FIELD(JobRecord, kJobsAt, id, 1u);
  (*page)->publish({}, {}, 61'000'000'000);
  EXPECT_FIELD(JobRecord, kJobsAt, id, 0u);
}

TEST_F(CountersFields, SayThatTheDaemonStoppedInOrder) {
  {
    auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
    ASSERT_TRUE(page.ok());
    EXPECT_FIELD(CountersHeader, 0, stopped_unix_ns, 0u);
    (*page)->mark_stopped();
  }
  EXPECT_GT(number(offsetof(layout::CountersHeader, stopped_unix_ns), 8), 1'600'000'000'000'000'000u);
  auto next = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  ASSERT_TRUE(next.ok());
  EXPECT_FIELD(CountersHeader, 0, stopped_unix_ns, 0u);
}

}  // namespace
}  // namespace gradwire::control
