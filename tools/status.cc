#include "tools/status.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "client/layout/session_layout.h"
#include "config/policy.h"
#include "tools/format.h"
#include "tools/status_words.h"

namespace gradwire::tools {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr size_t kMostNamed = 10;  // objects in a message

uint64_t since(uint64_t now_ns, uint64_t then_ns) {
  return now_ns > then_ns ? now_ns - then_ns : 0;
}

std::vector<std::string> degradations(const CountersPage& page, uint64_t now_ns) {
  std::vector<std::string> reasons;
  for (const JobCounters& job : page.jobs) {
    const bool recent = job.ended_ns == 0 || since(now_ns, job.ended_ns) <= kAbortRemembersNs;
    if (job.state == layout::JobState::kAborted && recent) {
      reasons.push_back("job " + job.name + " was aborted: " + job.cause);
    }
    if (job.state == layout::JobState::kRunning && !job.stall.empty()) {
      reasons.push_back("job " + job.name + " stands still: " + job.stall);
    }
  }
  for (const PeerCounters& peer : page.peers) {
    if (peer.state == layout::PeerState::kLost && !is_over(page, peer.job)) {  // else the job's cause is told
      reasons.push_back("node " + peer.node + " at " + peer.address + " was lost");
    }
  }
  if (page.records_dropped > 0) {
    reasons.push_back(std::to_string(page.records_dropped) +
                      " records found no free place in the counters page and are not shown");
  }
  return reasons;
}

DaemonReport without_page(DaemonReport report, const Status& status) {
  report.reasons.push_back(status.message());
  // Damaged, or of another version: somebody who holds it may be fine all the same.
  const bool lives = status.code() != Code::kNotFound && is_page_held(counters_path(report.runtime_dir));
  if (lives || status.code() == Code::kPermissionDenied) {
    report.state = DaemonState::kUnreadable;
  }
  return report;
}

// A page that nobody holds: the daemon's life is over, and its clocks stand still.
void judge_ended(DaemonReport* report) {
  const CountersPage& page = *report->page;
  const std::string daemon = "the daemon that wrote it (pid " + std::to_string(page.pid) + ")";
  if (page.stopped_unix_ns != 0) {
    report->state = DaemonState::kStopped;
    report->uptime_s = since(page.stopped_unix_ns, page.started_unix_ns) / kSecond;
    report->reasons.push_back(daemon + " stopped in an orderly way at " +
                              format_unix_time(page.stopped_unix_ns / kSecond));
    return;
  }
  report->state = DaemonState::kStale;
  report->uptime_s = since(page.heartbeat_ns, page.started_monotonic_ns) / kSecond;
  report->reasons.push_back("no process holds " + counters_path(report->runtime_dir) + ": " + daemon +
                            " is gone and did not say that it stops: it was killed, or it crashed");
}

bool is_job(const JobCounters& job, const std::string& wanted) {
  uint64_t id = 0;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), id);
  return job.name == wanted || (error == std::errc() && end == wanted.data() + wanted.size() && job.id == id);
}

// "no job 'x' here; there are: train (1), eval (2)".
Status unknown(const std::string& kind, const std::string& wanted, const std::vector<std::string>& known) {
  std::string list;
  for (size_t i = 0; i < std::min(known.size(), kMostNamed); ++i) {
    list += (i == 0 ? "" : ", ") + printable(known[i]);
  }
  if (known.size() > kMostNamed) {
    list += " and " + std::to_string(known.size() - kMostNamed) + " more";
  }
  return {Code::kNotFound, "no " + kind + " '" + printable(wanted) + "' here; there " +
                               (known.size() == 1 ? "is: " : "are: ") + (list.empty() ? "none" : list)};
}

void keep_job(const std::string& wanted, CountersPage* page) {
  std::erase_if(page->jobs, [&](const JobCounters& job) { return !is_job(job, wanted); });
  const auto foreign = [&](const auto& record) { return find_job(*page, record.job) == nullptr; };
  std::erase_if(page->ranks, foreign);
  std::erase_if(page->buckets, foreign);
  std::erase_if(page->peers, foreign);
}

void remember(std::vector<std::string>* names, std::string name) {
  if (std::ranges::find(*names, name) == names->end()) {
    names->push_back(std::move(name));
  }
}

}  // namespace

std::string_view state_name(DaemonState state) {
  static constexpr std::string_view kNames[] = {"healthy", "degraded",   "wedged", "stale",
                                                "stopped", "unreadable", "absent"};
  const auto number = static_cast<size_t>(state);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

DaemonReport assess(const std::string& runtime_dir, const Result<CountersPage>& page, uint64_t now_ns) {
  DaemonReport report;
  report.runtime_dir = runtime_dir;
  if (!page.ok()) {
    return without_page(std::move(report), page.status());
  }
  report.page = *page;
  std::ranges::sort(report.page->buckets, [](const BucketCounters& a, const BucketCounters& b) {
    const uint64_t of_a = bucket_bytes(a), of_b = bucket_bytes(b);
    return of_a != of_b ? of_a > of_b : a.name < b.name;
  });
  std::ranges::sort(report.page->ranks, {}, [](const RankCounters& r) { return std::pair(r.job, r.rank); });
  const uint64_t last_sign = std::max(page->heartbeat_ns, page->started_monotonic_ns);
  report.heartbeat_age_ns = since(now_ns, last_sign);
  if (!page->locked) {
    judge_ended(&report);
    return report;
  }
  report.uptime_s = since(now_ns, page->started_monotonic_ns) / kSecond;
  std::vector<std::string> reasons = degradations(*page, now_ns);
  if (report.heartbeat_age_ns > kWedgedAfterNs) {
    report.state = DaemonState::kWedged;
    report.reasons.push_back("the daemon stands still: it has not moved for " +
                             format_duration_ns(static_cast<double>(report.heartbeat_age_ns)) + " (limit " +
                             format_duration_ns(kWedgedAfterNs) + ")");
  } else {
    report.state = reasons.empty() ? DaemonState::kHealthy : DaemonState::kDegraded;
  }
  std::ranges::move(reasons, std::back_inserter(report.reasons));
  return report;
}

std::vector<DaemonReport> collect(const std::vector<std::string>& runtime_dirs) {
  std::vector<DaemonReport> reports;
  for (const std::string& dir : runtime_dirs) {
    const Result<CountersPage> page = read_counters(counters_path(dir));
    reports.push_back(assess(dir, page, monotonic_ns()));
  }
  return reports;
}

Status apply_filter(const StatusFilter& filter, std::vector<DaemonReport>* reports) {
  std::vector<std::string> jobs, buckets;  // that there are
  bool job_found = filter.job.empty();
  bool bucket_found = filter.bucket.empty();
  bool any_page = false;
  for (DaemonReport& report : *reports) {
    if (!report.page) {
      continue;
    }
    any_page = true;
    CountersPage& page = *report.page;
    for (const JobCounters& job : page.jobs) {
      remember(&jobs, job.name + " (" + std::to_string(job.id) + ")");
    }
    if (!filter.job.empty()) {
      keep_job(filter.job, &page);
      job_found = job_found || !page.jobs.empty();
    }
    if (!filter.bucket.empty()) {
      for (const BucketCounters& bucket : page.buckets) {
        if (bucket.bucket != layout::kBarrierBucket) {
          remember(&buckets, bucket.name);
        }
      }
      std::erase_if(page.buckets, [&](const BucketCounters& bucket) {
        return !config::glob_match(filter.bucket, bucket.name);
      });
      bucket_found = bucket_found || !page.buckets.empty();
    }
  }
  if (any_page && !job_found) {
    return unknown("job", filter.job, jobs);
  }
  return any_page && !bucket_found ? unknown("bucket", filter.bucket, buckets) : ok_status();
}

int exit_code(const std::vector<DaemonReport>& reports, bool found) {
  const auto any = [&](auto... states) {
    return std::ranges::any_of(reports, [&](const DaemonReport& r) { return ((r.state == states) || ...); });
  };
  if (reports.empty() || any(DaemonState::kAbsent, DaemonState::kStale, DaemonState::kStopped)) {
    return 3;
  }
  if (!found) {
    return 4;
  }
  return any(DaemonState::kDegraded, DaemonState::kWedged, DaemonState::kUnreadable) ? 1 : 0;
}

}  // namespace gradwire::tools
