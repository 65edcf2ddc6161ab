#include "tools/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/synthetic_page.h"

namespace gradwire::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

DaemonReport report_of(SyntheticPage& page, uint64_t later_ns = 0) {
  return assess(page.folder(), read_counters(page.path()), monotonic_ns() + later_ns);
}

TEST(Status, AFreshDaemonIsHealthy) {
  SyntheticPage page;
  page.fill();
  const DaemonReport report = report_of(page);
  EXPECT_EQ(report.state, DaemonState::kHealthy);
  EXPECT_THAT(report.reasons, IsEmpty());
  EXPECT_EQ(exit_code({report}, true), 0);
}

TEST(Status, AHeartbeatThatStandsStillIsWedged) {
  SyntheticPage page;
  EXPECT_EQ(report_of(page, kWedgedAfterNs - 1'000'000'000).state, DaemonState::kHealthy);
  const DaemonReport report = report_of(page, kWedgedAfterNs + 1'000'000);
  EXPECT_EQ(report.state, DaemonState::kWedged);
  EXPECT_THAT(report.reasons, ElementsAre(HasSubstr("no sign of life")));
  EXPECT_EQ(exit_code({report}, true), 1);
}

TEST(Status, ADaemonThatJustStartedHasTimeForItsFirstHeartbeat) {
  SyntheticPage page;
  page.header().heartbeat_ns.store(0, std::memory_order_relaxed);
  EXPECT_EQ(report_of(page).state, DaemonState::kHealthy);
}

TEST(Status, APageThatNobodyHoldsIsStaleAndNotRunning) {
  SyntheticPage page;
  page.unlock();
  const DaemonReport report = report_of(page);
  EXPECT_EQ(report.state, DaemonState::kStale);
  EXPECT_EQ(exit_code({report}, true), 3);
}

TEST(Status, AnAbortedJobIsDegradedWithItsCause) {
  SyntheticPage page;
  page.fill();
  page.job(0).state = static_cast<uint32_t>(layout::JobState::kAborted);
  put(page.job(0).cause, "rank 3 on worker-4 died");
  const DaemonReport report = report_of(page);
  EXPECT_EQ(report.state, DaemonState::kDegraded);
  EXPECT_THAT(report.reasons, ElementsAre(HasSubstr("rank 3 on worker-4 died")));
  EXPECT_EQ(exit_code({report}, true), 1);
}

TEST(Status, ALostPeerIsDegradedUnlessTheJobHadEnded) {
  SyntheticPage page;
  page.fill();
  page.peer(0).state = static_cast<uint32_t>(layout::PeerState::kLost);
  EXPECT_EQ(report_of(page).state, DaemonState::kDegraded);
  page.job(0).state = static_cast<uint32_t>(layout::JobState::kEnded);
  EXPECT_EQ(report_of(page).state, DaemonState::kHealthy);
}

TEST(Status, ExitCodesPutNotRunningFirstThenUnknownThenDegraded) {
  DaemonReport healthy, degraded, absent;
  healthy.state = DaemonState::kHealthy;
  degraded.state = DaemonState::kDegraded;
  absent.state = DaemonState::kAbsent;
  EXPECT_EQ(exit_code({}, true), 3);
  EXPECT_EQ(exit_code({healthy, absent}, false), 3);
  EXPECT_EQ(exit_code({healthy, degraded}, false), 4);
  EXPECT_EQ(exit_code({healthy, degraded}, true), 1);
  EXPECT_EQ(exit_code({healthy}, true), 0);
}

TEST(Status, FiltersByJobAndBucketPattern) {
  SyntheticPage page;
  page.fill();
  std::vector<DaemonReport> reports{report_of(page)};
  EXPECT_TRUE(apply_filter({"train", "conv*"}, &reports));
  EXPECT_EQ(reports[0].page->buckets.size(), 1u);
  EXPECT_FALSE(apply_filter({"", "fc?"}, &reports));
  EXPECT_THAT(reports[0].page->buckets, IsEmpty());
  EXPECT_FALSE(apply_filter({"other", ""}, &reports));
  EXPECT_THAT(reports[0].page->ranks, IsEmpty());
}

TEST(Status, JsonCarriesUnitsAndASchemaVersion) {
  SyntheticPage page;
  page.fill();
  page.bucket(0).residual_norm = std::nan("");
  const auto json = to_json({report_of(page)}, monotonic_ns());
  EXPECT_EQ(json["schema_version"], 1);
  const auto& daemon = json["daemons"][0];
  EXPECT_EQ(daemon["state"], "healthy");
  const auto& job = daemon["jobs"][0];
  EXPECT_EQ(job["wire_bytes"], 100'000);
  EXPECT_DOUBLE_EQ(job["ratio"], 40.0);
  EXPECT_DOUBLE_EQ(job["buckets"][0]["last_seconds"], 0.0015);
  EXPECT_DOUBLE_EQ(job["buckets"][0]["mean_seconds"], 0.002);
  EXPECT_TRUE(job["buckets"][0]["residual_norm"].is_null());
  EXPECT_DOUBLE_EQ(job["ranks"][1]["late_mean_seconds"], 0.0005);
  EXPECT_EQ(job["peers"][0]["state"], "up");
}

TEST(Status, TheTableShowsEveryTableAndNoControlCharacters) {
  SyntheticPage page;
  page.fill();
  put(page.job(0).name, "tr\x1b[31main\n");
  const std::string table = to_table({report_of(page)}, monotonic_ns());
  for (const char* word : {"worker-3: healthy", "JOB", "RANK", "BUCKET", "PEER", "conv1.weight", "laco",
                           "40.0x", "1.50 ms", "1.00%", "500 us", "10.0.0.4:7470"}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_THAT(table, HasSubstr("tr?[31main?"));
}

TEST(Status, AnAbsentDaemonSaysWhatIsMissing) {
  const TemporaryFolder folder;
  const std::vector<DaemonReport> reports = collect({folder.path()});
  EXPECT_THAT(to_table(reports, 0), HasSubstr("not running"));
  EXPECT_THAT(to_table(reports, 0), HasSubstr(counters_path(folder.path())));
  EXPECT_EQ(exit_code(reports, true), 3);
}

}  // namespace
}  // namespace gradwire::tools
