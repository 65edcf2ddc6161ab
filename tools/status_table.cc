#include <cmath>

#include "client/layout/session_layout.h"
#include "tools/format.h"
#include "tools/status.h"
#include "tools/status_words.h"

namespace gradwire::tools {
namespace {

using enum Table::Align;

std::string mean(uint64_t total_ns, uint64_t count) {
  return format_duration_ns(count == 0 ? 0 : static_cast<double>(total_ns) / static_cast<double>(count));
}

std::string job_name(const CountersPage& page, uint64_t id) {
  const JobCounters* const job = find_job(page, id);
  return job != nullptr ? printable(job->name) : std::string("#").append(std::to_string(id));
}

std::string torn_mark(bool torn) {
  return torn ? "~" : "";
}

// "running", "aborted 2m 05s ago".
std::string job_state(const JobCounters& job, uint64_t now_ns) {
  std::string state(name_of(job.state));
  if (job.ended_ns != 0 && now_ns > job.ended_ns) {
    state += " " + format_age((now_ns - job.ended_ns) / 1'000'000'000) + " ago";
  }
  return state;
}

std::string jobs_table(const CountersPage& page, uint64_t now_ns) {
  Table table({{"JOB"},
               {"ID", kRight},
               {"EPOCH", kRight},
               {"STATE"},
               {"RANKS", kRight},
               {"NODES", kRight},
               {"OPS", kRight},
               {"RAW", kRight},
               {"WIRE", kRight},
               {"RATIO", kRight},
               {"CAUSE"}});
  for (const JobCounters& job : page.jobs) {
    const uint64_t wire = job.payload_bytes + job.header_bytes;
    table.add_row({torn_mark(job.torn) + printable(job.name), std::to_string(job.id),
                   std::to_string(job.epoch), job_state(job, now_ns), std::to_string(job.world),
                   std::to_string(job.nodes), std::to_string(job.operations), format_bytes(job.raw_bytes),
                   format_bytes(wire), format_ratio(job.raw_bytes, wire), printable(job.cause)});
  }
  return table.empty() ? "" : table.render("  ");
}

std::string ranks_table(const CountersPage& page) {
  Table table({{"RANK", kRight},
               {"JOB"},
               {"STATE"},
               {"PID", kRight},
               {"SUBMITTED", kRight},
               {"LATE MEAN", kRight},
               {"LATE WORST", kRight}});
  for (const RankCounters& rank : page.ranks) {
    table.add_row({torn_mark(rank.torn) + std::to_string(rank.rank), job_name(page, rank.job),
                   std::string(name_of(rank.state)), std::to_string(rank.pid),
                   std::to_string(rank.submissions), mean(rank.late_total_ns, rank.submissions),
                   format_duration_ns(static_cast<double>(rank.late_max_ns))});
  }
  return table.empty() ? "" : table.render("  ");
}

std::string buckets_table(const CountersPage& page, size_t most) {
  Table table({{"BUCKET"},
               {"JOB"},
               {"CODEC"},
               {"SIZE", kRight},
               {"OPS", kRight},
               {"DENSITY", kRight},
               {"RATIO", kRight},
               {"RESIDUAL", kRight},
               {"LAST", kRight},
               {"MEAN", kRight},
               {"PHASE"}});
  size_t shown = 0;
  size_t hidden = 0;
  for (const BucketCounters& bucket : page.buckets) {
    if (bucket.bucket == layout::kBarrierBucket) {
      continue;
    }
    if (shown == most) {
      ++hidden;
      continue;
    }
    ++shown;
    const uint64_t wire = bucket.payload_bytes + bucket.header_bytes;
    std::string phase = printable(phase_sentence(page, bucket));
    if (bucket.not_finite > 0) {
      phase += " (" + std::to_string(bucket.not_finite) + " not finite)";
    }
    table.add_row({torn_mark(bucket.torn) + printable(bucket.name), job_name(page, bucket.job),
                   printable(bucket.codec), format_bytes(bucket_bytes(bucket)),
                   std::to_string(bucket.operations), format_fixed(bucket.density * 100, 2) + "%",
                   format_ratio(bucket.raw_bytes, wire), format_fixed(bucket.residual_norm, 3),
                   format_duration_ns(static_cast<double>(bucket.last_ns)),
                   mean(bucket.total_ns, bucket.operations), phase});
  }
  const std::string more =
      hidden == 0 ? "" : "  and " + std::to_string(hidden) + " smaller buckets (--all shows them)\n";
  return table.empty() ? "" : table.render("  ") + more;
}

// With its sign: a plan may have cost time.
std::string saved(int64_t ns) {
  return (ns < 0 ? "-" : "") + format_duration_ns(std::abs(static_cast<double>(ns)));
}

// Of buckets for which there was something to choose.
std::string plans_table(const CountersPage& page, size_t most) {
  Table table({{"PLAN OF"},
               {"JOB"},
               {"HOW"},
               {"EXPECTED", kRight},
               {"SEEN", kRight},
               {"EXACT", kRight},
               {"SAVED", kRight}});
  size_t shown = 0;
  for (const BucketCounters& bucket : page.buckets) {
    if (bucket.expected_ns == 0 || shown == most) {
      continue;
    }
    ++shown;
    table.add_row({torn_mark(bucket.torn) + printable(bucket.name), job_name(page, bucket.job),
                   printable(bucket.plan), format_duration_ns(static_cast<double>(bucket.expected_ns)),
                   mean(bucket.plan_total_ns, bucket.plan_operations),
                   format_duration_ns(static_cast<double>(bucket.exact_ns)), saved(bucket.saved_ns)});
  }
  return table.empty() ? "" : table.render("  ");
}

// Where the job ended in order, nobody is missed.
std::string peer_state(const CountersPage& page, const PeerCounters& peer) {
  const JobCounters* const job = find_job(page, peer.job);
  const bool in_order = job != nullptr && job->state == layout::JobState::kEnded;
  return in_order && peer.state == layout::PeerState::kGone ? "left" : std::string(name_of(peer.state));
}

std::string peers_table(const CountersPage& page, uint64_t now_ns) {
  Table table({{"PEER"}, {"JOB"}, {"STATE"}, {"RANKS"}, {"ADDRESS"}, {"PATH"}, {"LAST SIGN OF LIFE"}});
  for (const PeerCounters& peer : page.peers) {
    const uint64_t age = now_ns > peer.heartbeat_ns ? now_ns - peer.heartbeat_ns : 1;
    table.add_row({torn_mark(peer.torn) + printable(peer.node), job_name(page, peer.job),
                   peer_state(page, peer), printable(peer.ranks), printable(peer.address),
                   printable(peer.path),
                   peer.heartbeat_ns == 0 ? "-" : format_duration_ns(static_cast<double>(age)) + " ago"});
  }
  return table.empty() ? "" : table.render("  ");
}

std::string headline(const DaemonReport& report) {
  if (!report.page) {
    return "gradwired in " + printable(report.runtime_dir) + ": " +
           (report.state == DaemonState::kAbsent ? "not running" : "cannot be read") + "\n";
  }
  const CountersPage& page = *report.page;
  const bool ended = !page.locked;
  return "gradwired on " + printable(page.node) + ": " + std::string(state_name(report.state)) + " (" +
         (ended ? "was pid " : "pid ") + std::to_string(page.pid) + ", version " + printable(page.version) +
         ", transport " + printable(page.transport) + (ended ? ", was up " : ", up ") +
         format_age(report.uptime_s) + ", " + printable(report.runtime_dir) + ")\n";
}

// What is there now: the records of a job that is over stay as they were, its memory does not.
std::string residual_line(const CountersPage& page) {
  uint64_t bytes = 0;
  size_t buckets = 0;
  for (const BucketCounters& bucket : page.buckets) {
    if (bucket.residual_bytes != 0 && !is_over(page, bucket.job)) {
      bytes += bucket.residual_bytes;
      ++buckets;
    }
  }
  return buckets == 0 ? std::string()
                      : "  holds " + format_bytes(bytes) + " of residuals of " + std::to_string(buckets) +
                            (buckets == 1 ? " bucket\n" : " buckets\n");
}

std::string kept_line(const CountersPage& page) {
  if (page.kept_jobs == 0) {
    return {};
  }
  return "  keeps " + format_bytes(page.kept_bytes) + " of residuals of " + std::to_string(page.kept_jobs) +
         (page.kept_jobs == 1 ? " job that is not here now\n" : " jobs that are not here now\n");
}

}  // namespace

std::string to_table(const std::vector<DaemonReport>& reports, uint64_t now_ns, size_t most_buckets) {
  std::string out;
  for (const DaemonReport& report : reports) {
    out += (out.empty() ? "" : "\n") + headline(report);
    for (const std::string& reason : report.reasons) {
      out += "  ! " + printable(reason) + "\n";
    }
    if (report.page) {
      const CountersPage& page = *report.page;
      out += residual_line(page) + kept_line(page) + jobs_table(page, now_ns) + ranks_table(page) +
             buckets_table(page, most_buckets) + plans_table(page, most_buckets) + peers_table(page, now_ns);
    }
  }
  return out;
}

}  // namespace gradwire::tools
