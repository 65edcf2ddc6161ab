#include "tools/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/synthetic_page.h"
#include "tools/status_words.h"

namespace gradwire::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

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
  EXPECT_THAT(report.reasons, ElementsAre(StartsWith("the daemon stands still: it has not moved for 3")));
  EXPECT_EQ(exit_code({report}, true), 1);
}

TEST(Status, ADaemonThatJustStartedHasTimeForItsFirstHeartbeat) {
  SyntheticPage page;
  page.header().heartbeat_ns.store(0, std::memory_order_relaxed);
  EXPECT_EQ(report_of(page).state, DaemonState::kHealthy);
}

TEST(Status, APageThatNobodyHoldsIsStaleAndItsClockStandsStill) {
  SyntheticPage page;
  page.header().heartbeat_ns.store(page.header().started_monotonic_ns + 7'000'000'000,
                                   std::memory_order_relaxed);
  page.unlock();
  const DaemonReport report = report_of(page, 100'000'000'000);
  EXPECT_EQ(report.state, DaemonState::kStale);
  EXPECT_EQ(report.uptime_s, 7u);
  EXPECT_THAT(report.reasons, ElementsAre(HasSubstr("killed, or it crashed")));
  EXPECT_EQ(exit_code({report}, true), 3);
}

TEST(Status, ADaemonThatSaidSoIsStopped) {
  SyntheticPage page;
  page.header().started_unix_ns = 1'896'080'000'000'000'000;
  page.header().stopped_unix_ns.store(1'896'080'700'000'000'000, std::memory_order_relaxed);
  page.unlock();
  const DaemonReport report = report_of(page, 100'000'000'000);
  EXPECT_EQ(report.state, DaemonState::kStopped);
  EXPECT_EQ(report.uptime_s, 700u);
  EXPECT_THAT(report.reasons, ElementsAre(HasSubstr("stopped in an orderly way at 2030-01-31 09:05:00 UTC")));
  EXPECT_THAT(to_table({report}, monotonic_ns()), HasSubstr("was up 11m 40s"));
  EXPECT_EQ(exit_code({report}, true), 3);
}

TEST(Status, APageOfAnotherVersionIsUnreadableWhileItsDaemonLives) {
  SyntheticPage page;
  page.header().layout_version = 1;
  DaemonReport report = report_of(page);
  EXPECT_EQ(report.state, DaemonState::kUnreadable);
  EXPECT_THAT(report.reasons, ElementsAre(testing::AllOf(HasSubstr("version 1"), HasSubstr("version 3"))));
  EXPECT_THAT(to_table({report}, 0), HasSubstr("cannot be read"));
  EXPECT_EQ(exit_code({report}, true), 1);
  page.unlock();
  report = report_of(page);
  EXPECT_EQ(report.state, DaemonState::kAbsent);
  EXPECT_EQ(exit_code({report}, true), 3);
}

TEST(Status, AnOperationThatStandsStillIsDegradedWithItsSentence) {
  SyntheticPage page;
  page.fill();
  put(page.job(0).stall, "allreduce of b0 waits since 6.2 s for rank 3 on worker-4");
  const DaemonReport report = report_of(page);
  EXPECT_EQ(report.state, DaemonState::kDegraded);
  EXPECT_THAT(
      report.reasons,
      ElementsAre("job train stands still: allreduce of b0 waits since 6.2 s for rank 3 on worker-4"));
  page.job(0).state = static_cast<uint32_t>(layout::JobState::kEnded);
  EXPECT_EQ(report_of(page).state, DaemonState::kHealthy);
}

TEST(Status, AnAbortIsHistoryAfterHalfAMinute) {
  SyntheticPage page;
  page.fill();
  page.job(0).state = static_cast<uint32_t>(layout::JobState::kAborted);
  put(page.job(0).cause, "rank 3 on worker-4 died");
  const uint64_t now = monotonic_ns() + 100'000'000'000;
  page.header().heartbeat_ns.store(now, std::memory_order_relaxed);
  page.job(0).ended_ns = now - 29'000'000'000;
  EXPECT_EQ(assess(page.folder(), read_counters(page.path()), now).state, DaemonState::kDegraded);
  page.job(0).ended_ns = now - 31'000'000'000;
  page.peer(0).state = static_cast<uint32_t>(layout::PeerState::kLost);
  const DaemonReport report = assess(page.folder(), read_counters(page.path()), now);
  EXPECT_EQ(report.state, DaemonState::kHealthy);
  EXPECT_THAT(to_table({report}, now), HasSubstr("aborted 31s ago"));
  EXPECT_THAT(to_table({report}, now), HasSubstr("rank 3 on worker-4 died"));
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

TEST(Status, FiltersByJobNameOrNumberAndBucketPattern) {
  SyntheticPage page;
  page.fill();
  std::vector<DaemonReport> reports{report_of(page)};
  EXPECT_TRUE(apply_filter({"train", "conv*"}, &reports).ok());
  EXPECT_TRUE(apply_filter({"1", ""}, &reports).ok());
  EXPECT_EQ(reports[0].page->buckets.size(), 1u);
  const Status no_bucket = apply_filter({"", "fc?"}, &reports);
  EXPECT_EQ(no_bucket.code(), Code::kNotFound);
  EXPECT_EQ(no_bucket.message(), "no bucket 'fc?' here; there is: conv1.weight");
  EXPECT_THAT(reports[0].page->buckets, IsEmpty());
  EXPECT_EQ(apply_filter({"11", ""}, &reports).message(), "no job '11' here; there is: train (1)");
  EXPECT_THAT(reports[0].page->ranks, IsEmpty());
  EXPECT_EQ(apply_filter({"x", ""}, &reports).message(), "no job 'x' here; there are: none");
}

TEST(Status, PhasesAreWords) {
  SyntheticPage page;
  page.fill();
  const auto sentence = [&](layout::BucketPhase phase, uint32_t node) {
    page.bucket(0).phase = static_cast<uint32_t>(phase);
    page.bucket(0).hop = 1;
    page.bucket(0).hops = 6;
    page.bucket(0).waits_for_node = node;
    page.bucket(0).missing_ranks = 2;
    const CountersPage read = *read_counters(page.path());
    return phase_sentence(read, read.buckets[0]);
  };
  EXPECT_EQ(sentence(layout::BucketPhase::kReducing, 1), "reducing, hop 2 of 6, waits for node worker-4");
  EXPECT_EQ(sentence(layout::BucketPhase::kDistributing, 0),
            "distributing, hop 2 of 6, waits for node worker-3");
  EXPECT_EQ(sentence(layout::BucketPhase::kReducing, 9), "reducing, hop 2 of 6, waits for node number 9");
  EXPECT_EQ(sentence(layout::BucketPhase::kReducing, UINT32_MAX), "reducing, hop 2 of 6");
  EXPECT_EQ(sentence(layout::BucketPhase::kGranting, 1), "waits for node worker-4 to start");
  EXPECT_EQ(sentence(layout::BucketPhase::kGathering, UINT32_MAX), "gathering, waits for 2 local ranks");
  EXPECT_EQ(sentence(layout::BucketPhase::kHeld, UINT32_MAX), "held by a change of plan");
  EXPECT_EQ(sentence(layout::BucketPhase::kIdle, UINT32_MAX), "idle");
  EXPECT_EQ(sentence(static_cast<layout::BucketPhase>(77), UINT32_MAX), "unknown");
}

TEST(Status, TheLargestBucketsComeFirstAndTheRestIsCounted) {
  SyntheticPage page;
  for (uint32_t i = 0; i < 30; ++i) {
    page.bucket(i).id = i + 1;
    page.bucket(i).bucket = i;  // 0 is the barrier's
    page.bucket(i).elements = i * 1'000;
    put(page.bucket(i).name, ("bucket" + std::to_string(i)).c_str());
  }
  const DaemonReport report = report_of(page);
  EXPECT_EQ(report.page->buckets[0].name, "bucket29");
  const std::string table = to_table({report}, monotonic_ns());
  EXPECT_LT(table.find("bucket29"), table.find("bucket10"));
  EXPECT_THAT(table, HasSubstr("and 9 smaller buckets (--all shows them)"));
  EXPECT_THAT(table, Not(HasSubstr("bucket9 ")));
  EXPECT_THAT(to_table({report}, monotonic_ns(), 4096), HasSubstr("bucket1 "));
}

TEST(Status, PlansAreShownWhereTheyWereMeasured) {
  SyntheticPage page;
  page.fill();
  EXPECT_THAT(to_table({report_of(page)}, monotonic_ns()), Not(HasSubstr("PLAN OF")));
  EXPECT_TRUE(to_json({report_of(page)},
                      monotonic_ns())["daemons"][0]["jobs"][0]["buckets"][0]["plan_expected_seconds"]
                  .is_null());
  layout::BucketRecord& bucket = page.bucket(0);
  put(bucket.plan, "laco by direct");
  bucket.expected_ns = 1'500'000;
  bucket.exact_ns = 9'000'000;
  bucket.plan_operations = 2;
  bucket.plan_total_ns = 4'000'000;
  bucket.saved_ns = -14'000'000;
  const auto shown = to_json({report_of(page)}, monotonic_ns())["daemons"][0]["jobs"][0]["buckets"][0];
  EXPECT_EQ(shown["plan"], "laco by direct");
  EXPECT_DOUBLE_EQ(shown["plan_expected_seconds"], 0.0015);
  EXPECT_DOUBLE_EQ(shown["plan_exact_seconds"], 0.009);
  EXPECT_DOUBLE_EQ(shown["plan_seen_mean_seconds"], 0.002);
  EXPECT_EQ(shown["saved_microseconds"], -14'000) << "it may have cost time";
  EXPECT_THAT(to_table({report_of(page)}, monotonic_ns()),
              testing::AllOf(HasSubstr("PLAN OF"), HasSubstr("laco by direct"), HasSubstr("-14.0 ms")));
}

TEST(Status, JsonCarriesUnitsAndASchemaVersion) {
  SyntheticPage page;
  page.fill();
  page.bucket(0).residual_norm = std::nan("");
  page.header().kept_bytes.store(3 << 20, std::memory_order_relaxed);
  const auto json = to_json({report_of(page)}, monotonic_ns());
  EXPECT_EQ(json["schema_version"], 2);
  const auto& daemon = json["daemons"][0];
  EXPECT_EQ(daemon["state"], "healthy");
  const auto& job = daemon["jobs"][0];
  EXPECT_EQ(job["wire_bytes"], 100'000);
  EXPECT_DOUBLE_EQ(job["ratio"], 40.0);
  EXPECT_DOUBLE_EQ(job["buckets"][0]["last_seconds"], 0.0015);
  EXPECT_DOUBLE_EQ(job["buckets"][0]["mean_seconds"], 0.002);
  EXPECT_TRUE(job["buckets"][0]["residual_norm"].is_null());
  EXPECT_DOUBLE_EQ(job["ranks"][1]["late_mean_seconds"], 0.0005);  // of all its operations
  EXPECT_EQ(job["ranks"][1]["late_operations"], 4);
  EXPECT_DOUBLE_EQ(job["ranks"][1]["late_max_seconds"], 0.003);
  EXPECT_EQ(job["peers"][0]["state"], "up");
  EXPECT_LT(job["peers"][0]["heartbeat_age_seconds"], 60.0);
  EXPECT_TRUE(job["stall"].is_null());
  EXPECT_EQ(job["buckets"][0]["bytes"], 4'000'000);
  EXPECT_EQ(job["buckets"][0]["operation"], "allreduce");
  EXPECT_EQ(job["buckets"][0]["phase_sentence"], "idle");
  EXPECT_TRUE(job["buckets"][0]["waits_for_node"].is_null());
  EXPECT_EQ(daemon["kept_residual_bytes"], 3 << 20);
  EXPECT_TRUE(daemon["stopped_unix_seconds"].is_null());
}

TEST(Status, TheTableShowsEveryTableAndNoControlCharacters) {
  SyntheticPage page;
  page.fill();
  put(page.job(0).name, "tr\x1b[31main\n");
  page.header().kept_bytes.store(3 << 20, std::memory_order_relaxed);
  page.header().kept_jobs.store(2, std::memory_order_relaxed);
  page.bucket(0).residual_bytes = 5 << 20;
  const std::string table = to_table({report_of(page)}, monotonic_ns());
  for (const char* word :
       {"keeps 3.0 MiB of residuals of 2 jobs", "holds 5.0 MiB of residuals of 1 bucket", "LATE WORST",
        "3.00 ms", "3.8 MiB", "worker-3: healthy", "JOB", "RANK", "BUCKET", "PEER", "conv1.weight", "laco",
        "40.0x", "1.50 ms", "1.00%", "500 us", "10.0.0.4:7470"}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_THAT(table, HasSubstr("tr?[31main?"));
}

TEST(Status, AJobThatIsOverHoldsNothingAndItsPeersHaveLeftOrAreGone) {
  SyntheticPage page;
  page.fill();
  page.bucket(0).residual_bytes = 5 << 20;
  page.peer(0).state = static_cast<uint32_t>(layout::PeerState::kGone);
  const auto table = [&](layout::JobState state) {
    page.job(0).state = static_cast<uint32_t>(state);
    return to_table({report_of(page)}, monotonic_ns());
  };
  EXPECT_THAT(table(layout::JobState::kRunning), HasSubstr("holds 5.0 MiB of residuals of 1 bucket"));
  const std::string ended = table(layout::JobState::kEnded);
  EXPECT_THAT(ended, Not(HasSubstr("holds")));
  EXPECT_THAT(ended, HasSubstr("train  left"));
  const std::string aborted = table(layout::JobState::kAborted);
  EXPECT_THAT(aborted, Not(HasSubstr("holds")));
  EXPECT_THAT(aborted, HasSubstr("train  gone"));
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
