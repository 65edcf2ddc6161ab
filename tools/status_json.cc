#include <cmath>

#include "tools/format.h"
#include "tools/status.h"
#include "tools/status_words.h"

namespace gradwire::tools {
namespace {

using nlohmann::ordered_json;

ordered_json ratio(uint64_t raw, uint64_t wire) {
  return wire == 0 ? ordered_json() : ordered_json(static_cast<double>(raw) / static_cast<double>(wire));
}

// JSON has no NaN and no infinity.
ordered_json finite(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json();
}

double seconds(uint64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

double mean_seconds(uint64_t total_ns, uint64_t count) {
  return count == 0 ? 0 : seconds(total_ns) / static_cast<double>(count);
}

// How long ago a moment was; null for 0.
ordered_json age_seconds(uint64_t then_ns, uint64_t now_ns) {
  if (then_ns == 0) {
    return {};
  }
  return now_ns > then_ns ? seconds(now_ns - then_ns) : 0.0;
}

ordered_json to_json(const RankCounters& rank) {
  ordered_json out{{"rank", rank.rank},
                   {"pid", rank.pid},
                   {"state", name_of(rank.state)},
                   {"submissions", rank.submissions},
                   {"late_operations", rank.late_count},
                   {"late_mean_seconds", mean_seconds(rank.late_total_ns, rank.submissions)},
                   {"late_max_seconds", seconds(rank.late_max_ns)}};
  return out;
}

// A name, or null where there is none.
ordered_json named(std::string_view name) {
  return name.empty() ? ordered_json() : ordered_json(printable(name));
}

ordered_json measured_seconds(uint64_t ns) {
  return ns == 0 ? ordered_json() : ordered_json(seconds(ns));
}

ordered_json to_json(const CountersPage& page, const BucketCounters& bucket) {
  const bool waits = bucket.waits_for_node != UINT32_MAX;
  const uint64_t wire = bucket.payload_bytes + bucket.header_bytes;
  return {
      {"bucket", bucket.bucket},
      {"name", printable(bucket.name)},
      {"dtype", dtype_name(bucket.dtype)},
      {"codec", printable(bucket.codec)},
      {"elements", bucket.elements},
      {"bytes", bucket_bytes(bucket)},
      {"operation", named(operation_name(bucket.operation))},
      {"phase", name_of(bucket.phase)},
      {"phase_sentence", printable(phase_sentence(page, bucket))},
      {"hop", bucket.hop},
      {"hops", bucket.hops},
      {"waits_for_node_index", waits ? ordered_json(bucket.waits_for_node) : ordered_json()},
      {"waits_for_node", waits ? named(node_name(page, bucket.job, bucket.waits_for_node)) : ordered_json()},
      {"sequence", bucket.sequence},
      {"operations", bucket.operations},
      {"not_finite_operations", bucket.not_finite},
      {"raw_bytes", bucket.raw_bytes},
      {"payload_bytes", bucket.payload_bytes},
      {"header_bytes", bucket.header_bytes},
      {"wire_bytes", wire},
      {"received_bytes", bucket.received_bytes},
      {"ratio", ratio(bucket.raw_bytes, wire)},
      {"density", finite(bucket.density)},
      {"residual_norm", finite(bucket.residual_norm)},
      {"residual_bytes", bucket.residual_bytes},
      {"warm_stage", bucket.warm_stage},
      {"missing_ranks", bucket.missing_ranks},
      {"last_seconds", seconds(bucket.last_ns)},
      {"mean_seconds", mean_seconds(bucket.total_ns, bucket.operations)},
      {"gather_mean_seconds", mean_seconds(bucket.gather_total_ns, bucket.operations)},
      {"plan", named(bucket.plan)},
      {"plan_changes", bucket.plan_changes},
      {"plan_operations", bucket.plan_operations},
      {"plan_expected_seconds", measured_seconds(bucket.expected_ns)},
      {"plan_exact_seconds", measured_seconds(bucket.exact_ns)},
      {"plan_seen_mean_seconds", mean_seconds(bucket.plan_total_ns, bucket.plan_operations)},
      {"saved_microseconds", bucket.saved_ns / 1000}};
}

ordered_json to_json(const PeerCounters& peer, uint64_t now_ns) {
  return {{"node", printable(peer.node)},
          {"node_index", peer.node_index},
          {"ranks", printable(peer.ranks)},
          {"address", printable(peer.address)},
          {"path", printable(peer.path)},
          {"state", name_of(peer.state)},
          {"heartbeat_age_seconds", age_seconds(peer.heartbeat_ns, now_ns)}};
}

template <typename Records, typename Convert>
ordered_json of_job(const Records& records, uint64_t job, Convert convert) {
  ordered_json out = ordered_json::array();
  for (const auto& record : records) {
    if (record.job == job) {
      out.push_back(convert(record));
      if (record.torn) {
        out.back()["torn"] = true;
      }
    }
  }
  return out;
}

ordered_json to_json(const CountersPage& page, const JobCounters& job, uint64_t now_ns) {
  const uint64_t wire = job.payload_bytes + job.header_bytes;
  ordered_json out{{"id", job.id},
                   {"name", printable(job.name)},
                   {"run_id", printable(job.run_id)},
                   {"state", name_of(job.state)},
                   {"cause", printable(job.cause)},
                   {"ended_age_seconds", age_seconds(job.ended_ns, now_ns)},
                   {"stall", named(job.stall)},
                   {"uid", job.uid},
                   {"world", job.world},
                   {"nodes", job.nodes},
                   {"node_index", job.node_index},
                   {"epoch", job.epoch},
                   {"operations", job.operations},
                   {"raw_bytes", job.raw_bytes},
                   {"payload_bytes", job.payload_bytes},
                   {"header_bytes", job.header_bytes},
                   {"wire_bytes", wire},
                   {"ratio", ratio(job.raw_bytes, wire)}};
  if (job.torn) {
    out["torn"] = true;
  }
  out["ranks"] = of_job(page.ranks, job.id, [](const auto& r) { return to_json(r); });
  out["buckets"] = of_job(page.buckets, job.id, [&](const auto& b) { return to_json(page, b); });
  out["peers"] = of_job(page.peers, job.id, [&](const auto& p) { return to_json(p, now_ns); });
  return out;
}

ordered_json to_json(const DaemonReport& report, uint64_t now_ns) {
  ordered_json reasons = ordered_json::array();
  for (const std::string& reason : report.reasons) {
    reasons.push_back(printable(reason));
  }
  ordered_json out{{"runtime_dir", printable(report.runtime_dir)},
                   {"state", state_name(report.state)},
                   {"reasons", reasons}};
  if (!report.page) {
    return out;
  }
  const CountersPage& page = *report.page;
  out["node"] = printable(page.node);
  out["pid"] = page.pid;
  out["version"] = printable(page.version);
  out["transport"] = printable(page.transport);
  out["uptime_seconds"] = report.uptime_s;
  out["started_unix_seconds"] = seconds(page.started_unix_ns);
  out["heartbeat_age_seconds"] = seconds(report.heartbeat_age_ns);
  out["stopped_unix_seconds"] =
      page.stopped_unix_ns == 0 ? ordered_json() : ordered_json(seconds(page.stopped_unix_ns));
  out["kept_residual_bytes"] = page.kept_bytes;
  out["kept_residual_jobs"] = page.kept_jobs;
  out["records_dropped"] = page.records_dropped;
  out["jobs"] = ordered_json::array();
  for (const JobCounters& job : page.jobs) {
    out["jobs"].push_back(to_json(page, job, now_ns));
  }
  return out;
}

}  // namespace

ordered_json to_json(const std::vector<DaemonReport>& reports, uint64_t now_ns) {
  ordered_json out{{"schema_version", kStatusSchemaVersion}, {"daemons", ordered_json::array()}};
  for (const DaemonReport& report : reports) {
    out["daemons"].push_back(to_json(report, now_ns));
  }
  return out;
}

}  // namespace gradwire::tools
