#include "tools/counters_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/tools/synthetic_page.h"

namespace gradwire::tools {
namespace {

using testing::HasSubstr;

TEST(CountersReader, ReadsWhatTheDaemonWrote) {
  SyntheticPage page;
  page.fill();
  const Result<CountersPage> got = read_counters(page.path());
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_TRUE(got->locked);
  EXPECT_EQ(got->pid, ::getpid());
  EXPECT_EQ(got->node, "worker-3");
  EXPECT_EQ(got->transport, "tcp");
  EXPECT_EQ(got->stopped_unix_ns, 0u);
  ASSERT_EQ(got->jobs.size(), 1u);
  EXPECT_EQ(got->jobs[0].name, "train");
  EXPECT_EQ(got->jobs[0].world, 4u);
  EXPECT_EQ(got->jobs[0].header_bytes, 10'000u);
  ASSERT_EQ(got->ranks.size(), 2u);
  EXPECT_EQ(got->ranks[1].late_total_ns, 5'000'000u);
  EXPECT_EQ(got->ranks[1].late_count, 4u);
  ASSERT_EQ(got->buckets.size(), 1u);
  EXPECT_EQ(got->buckets[0].codec, "laco");
  EXPECT_DOUBLE_EQ(got->buckets[0].density, 0.01);
  ASSERT_EQ(got->peers.size(), 1u);
  EXPECT_EQ(got->peers[0].address, "10.0.0.4:7470");
  EXPECT_EQ(got->peers[0].node_index, 1u);
}

TEST(CountersReader, FindsRecordsInTheLastPlaces) {
  SyntheticPage page;
  page.bucket(layout::kCounterBuckets - 1).id = 7;
  page.peer(layout::kCounterPeers - 1).id = 9;
  const Result<CountersPage> got = read_counters(page.path());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->buckets.size(), 1u);
  EXPECT_EQ(got->peers.size(), 1u);
}

TEST(CountersReader, SaysWhenNobodyHoldsThePage) {
  SyntheticPage page;
  page.unlock();
  const Result<CountersPage> got = read_counters(page.path());
  ASSERT_TRUE(got.ok());
  EXPECT_FALSE(got->locked);
  page.lock();  // the reader must have let go
  EXPECT_TRUE(read_counters(page.path())->locked);
}

TEST(CountersReader, ShowsARecordWhoseWriterStoppedInTheMiddleAsTorn) {
  SyntheticPage page;
  page.fill();
  page.bucket(0).version.store(5, std::memory_order_relaxed);
  const Result<CountersPage> got = read_counters(page.path());
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->buckets.size(), 1u);
  EXPECT_TRUE(got->buckets[0].torn);
  EXPECT_FALSE(got->jobs[0].torn);
}

TEST(CountersReader, NeverMixesTwoWritesOfARecord) {
  SyntheticPage page;
  page.fill();
  layout::JobRecord& job = page.job(0);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t value = 1; !stop.load(std::memory_order_relaxed); ++value) {
      const uint32_t version = job.version.load(std::memory_order_relaxed);
      job.version.store(version + 1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_release);
      std::atomic_ref(job.operations).store(value, std::memory_order_relaxed);
      std::atomic_ref(job.header_bytes).store(value, std::memory_order_relaxed);
      job.version.store(version + 2, std::memory_order_release);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  int whole = 0;
  for (int i = 0; i < 50; ++i) {
    const Result<CountersPage> got = read_counters(page.path());
    if (got.ok() && !got->jobs[0].torn && got->jobs[0].operations > 10) {
      EXPECT_EQ(got->jobs[0].operations, got->jobs[0].header_bytes);
      ++whole;
    }
  }
  stop.store(true, std::memory_order_relaxed);
  writer.join();
  EXPECT_GT(whole, 0);
}

TEST(CountersReader, TakesTextWithoutAnEndOnlyUpToItsField) {
  SyntheticPage page;
  page.fill();
  std::memset(page.job(0).name, 'x', sizeof(page.job(0).name));
  const Result<CountersPage> got = read_counters(page.path());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->jobs[0].name, std::string(128, 'x'));
}

TEST(CountersReader, RefusesAMissingFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_counters(counters_path(folder.path())).status().code(), Code::kNotFound);
  EXPECT_EQ(read_counters(counters_path(folder.path() + "/none")).status().code(), Code::kNotFound);
}

TEST(CountersReader, RefusesForeignFiles) {
  const TemporaryFolder folder;
  const std::string path = counters_path(folder.path());
  std::ofstream(path) << std::string(100'000, 'A');
  const Status status = read_counters(path).status();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("not a counters page"));
}

TEST(CountersReader, RefusesAnythingThatIsNoRegularFile) {
  const TemporaryFolder folder;
  const std::string path = counters_path(folder.path());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_counters(path).status().code(), Code::kCorrupt);
  ::unlink(path.c_str());
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  EXPECT_EQ(read_counters(path).status().code(), Code::kCorrupt);
}

TEST(CountersReader, RefusesPagesOfEveryShorterLength) {
  SyntheticPage page;
  page.fill();
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, sizeof(layout::CountersHeader) - 1,
                               sizeof(layout::CountersHeader), layout::kCountersBytes - 1}) {
    SyntheticPage cut;
    cut.cut_to(bytes);
    EXPECT_EQ(read_counters(cut.path()).status().code(), Code::kCorrupt) << bytes;
  }
  EXPECT_TRUE(read_counters(page.path()).ok());
}

TEST(CountersReader, RefusesOtherLayoutVersions) {
  for (const uint32_t version : {layout::kCountersVersion - 1, layout::kCountersVersion + 1}) {
    SyntheticPage page;
    page.header().layout_version = version;
    const Status status = read_counters(page.path()).status();
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_THAT(status.message(), HasSubstr("has layout version " + std::to_string(version)));
    EXPECT_THAT(status.message(), HasSubstr("reads version " + std::to_string(layout::kCountersVersion)));
  }
}

TEST(CountersReader, RefusesSizesThatCannotBe) {
  const auto refused = [](auto change) {
    SyntheticPage page;
    change(page.header());
    return read_counters(page.path()).status().code() == Code::kCorrupt;
  };
  EXPECT_TRUE(refused([](auto& h) { h.job_bytes = 8; }));
  EXPECT_TRUE(refused([](auto& h) { h.header_bytes = 64; }));
  EXPECT_TRUE(refused([](auto& h) { h.buckets = UINT32_MAX; }));
  EXPECT_TRUE(refused([](auto& h) { h.buckets = layout::kCounterBuckets + 1; }));
}

TEST(CountersReader, AcceptsSmallerTables) {
  SyntheticPage page;
  page.header().jobs = 2;
  page.header().ranks = page.header().buckets = page.header().peers = 0;
  page.job(1).id = 3;
  const Result<CountersPage> got = read_counters(page.path());
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->jobs.size(), 1u);
}

}  // namespace
}  // namespace gradwire::tools
