#include "daemon/control/stall_watch.h"

#include <algorithm>

#include "daemon/control/documents.h"
#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

constexpr size_t kMaxPhase = 512;
constexpr size_t kShownNodes = 16;

}  // namespace

std::string phase_text(const std::string& phase) {
  return clean(phase, kMaxPhase);
}

Json stall_document(const StallReport& report) {
  return {{"type", "stall"},
          {"bucket", report.bucket},
          {"sequence", report.sequence},
          {"name", report.name},
          {"waited_ms", report.waited_ms},
          {"deadline", report.deadline ? 1u : 0u},
          {"phase", phase_text(report.phase)}};
}

Result<StallReport> read_stall(const Json& document) {
  Fields fields(document);
  StallReport report;
  report.bucket = fields.number<uint32_t>("bucket", 0, UINT32_MAX);
  report.sequence = fields.number("sequence", 0, UINT64_MAX);
  report.name = fields.text("name", 0, kMaxBucketName);
  report.waited_ms = fields.number("waited_ms", 0, uint64_t{1} << 50);
  report.deadline = fields.number("deadline", 0, 1) != 0;
  report.phase = fields.text("phase", 0, kMaxPhase);
  if (!fields.ok()) {
    return fields.status().with_context("stall");
  }
  return report;
}

void StallWatch::stalled(const StallReport& report) {
  for (auto& [id, query] : queries_) {
    if (query->report.bucket == report.bucket && query->report.sequence == report.sequence) {
      query->report.deadline = query->report.deadline || report.deadline;
      query->report.waited_ms = std::max(query->report.waited_ms, report.waited_ms);
      return;
    }
  }
  const uint64_t id = ++last_query_;
  auto query = std::make_unique<Query>(scheduler_);
  query->report = report;
  for (uint32_t node = 0; node < nodes_; ++node) {
    query->unanswered.insert(node);
  }
  query->patience.start(patience_, [this, id] { finish(id); });
  queries_.emplace(id, std::move(query));
  for (uint32_t node = 0; node < nodes_; ++node) {
    hooks_.send(
        node,
        {{"type", "who_misses"}, {"query", id}, {"bucket", report.bucket}, {"sequence", report.sequence}});
  }
}

Status StallWatch::misses(uint32_t node, const Json& document, uint32_t world) {
  Fields fields(document);
  const uint64_t id = fields.number("query", 1, UINT64_MAX);
  const std::vector<uint32_t> ranks = fields.numbers("missing", world, world - 1);
  const std::string phase = fields.text("phase", 0, kMaxPhase);
  if (!fields.ok()) {
    return fields.status().with_context("misses");
  }
  const auto found = queries_.find(id);
  if (found == queries_.end() || found->second->unanswered.erase(node) == 0) {
    return ok_status();  // too late, or said twice
  }
  found->second->phases[node] = phase;
  found->second->missing.insert(found->second->missing.end(), ranks.begin(), ranks.end());
  if (found->second->unanswered.empty()) {
    finish(id);
  }
  return ok_status();
}

// ": node a (rank 0) is reducing, hop 1 of 2, waiting for node b; node b (rank 1) is ..."
std::string StallWatch::phases(const Query& query) const {
  std::string text;
  size_t shown = 0;
  for (const auto& [node, phase] : query.phases) {
    if (phase.empty()) {
      continue;
    }
    if (shown++ == kShownNodes) {
      return text + "; and " + std::to_string(query.phases.size() - kShownNodes) + " more nodes";
    }
    text += (text.empty() ? ": " : "; ") + hooks_.node(node) + " is " + phase;
  }
  return text;
}

void StallWatch::finish(uint64_t id) {
  const auto node = queries_.extract(id);
  Query& query = *node.mapped();
  std::sort(query.missing.begin(), query.missing.end());
  const StallReport& report = query.report;
  const std::string operation =
      bucket_text(report.name) + " #" + std::to_string(report.sequence) +
      (report.deadline ? " waits" : " has waited " + format_duration_ms(report.waited_ms));
  std::string waits_for;
  if (!query.missing.empty()) {
    waits_for = " for " + hooks_.places(query.missing) + " to submit it (gathering)";
  }
  for (const uint32_t silent : query.unanswered) {
    waits_for += (waits_for.empty() ? " for " : ", ") + hooks_.node(silent) + " whose daemon does not answer";
  }
  if (query.missing.empty()) {
    waits_for += (waits_for.empty() ? " although every rank has submitted it" : "") + phases(query);
  }
  hooks_.verdict(report, operation + waits_for);
}

}  // namespace gradwire::control
