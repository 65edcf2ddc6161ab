#include "tools/status.h"

#include <algorithm>

#include "config/policy.h"
#include "tools/format.h"

namespace gradwire::tools {
namespace {

uint64_t since(uint64_t now_ns, uint64_t then_ns) {
  return now_ns > then_ns ? now_ns - then_ns : 0;
}

const JobCounters* find_job(const CountersPage& page, uint64_t id) {
  const auto found = std::ranges::find(page.jobs, id, &JobCounters::id);
  return found == page.jobs.end() ? nullptr : &*found;
}

std::vector<std::string> degradations(const CountersPage& page) {
  std::vector<std::string> reasons;
  for (const JobCounters& job : page.jobs) {
    if (job.state == layout::JobState::kAborted) {
      reasons.push_back("job " + job.name + " was aborted: " + job.cause);
    }
  }
  for (const PeerCounters& peer : page.peers) {
    const JobCounters* job = find_job(page, peer.job);
    const bool said = job != nullptr && job->state == layout::JobState::kAborted;
    const bool over = job != nullptr && job->state == layout::JobState::kEnded;
    if (peer.state == layout::PeerState::kLost && !said && !over) {
      reasons.push_back("node " + peer.node + " at " + peer.address + " was lost");
    }
  }
  if (page.records_dropped > 0) {
    reasons.push_back(std::to_string(page.records_dropped) +
                      " records found no free place in the counters page and are not shown");
  }
  return reasons;
}

}  // namespace

std::string_view state_name(DaemonState state) {
  switch (state) {
    case DaemonState::kHealthy:
      return "healthy";
    case DaemonState::kDegraded:
      return "degraded";
    case DaemonState::kWedged:
      return "wedged";
    case DaemonState::kStale:
      return "stale";
    case DaemonState::kAbsent:
      return "absent";
  }
  return "unknown";
}

DaemonReport assess(const std::string& runtime_dir, const Result<CountersPage>& page, uint64_t now_ns) {
  DaemonReport report;
  report.runtime_dir = runtime_dir;
  if (!page.ok()) {
    report.reasons.push_back(page.status().message());
    return report;
  }
  report.page = *page;
  const uint64_t last_sign = std::max(page->heartbeat_ns, page->started_monotonic_ns);
  report.heartbeat_age_ns = since(now_ns, last_sign);
  report.uptime_s = since(now_ns, page->started_monotonic_ns) / 1'000'000'000;
  if (!page->locked) {
    report.state = DaemonState::kStale;
    report.reasons.push_back("no process holds " + counters_path(runtime_dir) +
                             ": the daemon that wrote it (pid " + std::to_string(page->pid) + ") is gone");
    return report;
  }
  std::vector<std::string> reasons = degradations(*page);
  if (report.heartbeat_age_ns > kWedgedAfterNs) {
    report.state = DaemonState::kWedged;
    report.reasons.push_back("the engine gave no sign of life for " +
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

bool apply_filter(const StatusFilter& filter, std::vector<DaemonReport>* reports) {
  bool job_found = filter.job.empty();
  bool bucket_found = filter.bucket.empty();
  bool any_page = false;
  for (DaemonReport& report : *reports) {
    if (!report.page) {
      continue;
    }
    any_page = true;
    CountersPage& page = *report.page;
    if (!filter.job.empty()) {
      std::erase_if(page.jobs, [&](const JobCounters& job) { return job.name != filter.job; });
      job_found = job_found || !page.jobs.empty();
      const auto foreign = [&](const auto& record) { return find_job(page, record.job) == nullptr; };
      std::erase_if(page.ranks, foreign);
      std::erase_if(page.buckets, foreign);
      std::erase_if(page.peers, foreign);
    }
    if (!filter.bucket.empty()) {
      std::erase_if(page.buckets, [&](const BucketCounters& bucket) {
        return !config::glob_match(filter.bucket, bucket.name);
      });
      bucket_found = bucket_found || !page.buckets.empty();
    }
  }
  return !any_page || (job_found && bucket_found);
}

int exit_code(const std::vector<DaemonReport>& reports, bool found) {
  const auto any = [&](auto... states) {
    return std::ranges::any_of(reports, [&](const DaemonReport& r) { return ((r.state == states) || ...); });
  };
  if (reports.empty() || any(DaemonState::kAbsent, DaemonState::kStale)) {
    return 3;
  }
  if (!found) {
    return 4;
  }
  return any(DaemonState::kDegraded, DaemonState::kWedged) ? 1 : 0;
}

}  // namespace gradwire::tools
