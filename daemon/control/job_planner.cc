#include "daemon/control/job_planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "config/policy_json.h"
#include "daemon/control/bucket_reducer.h"
#include "daemon/control/log.h"
#include "daemon/control/plan_candidates.h"

namespace gradwire::control {
namespace {

constexpr size_t kMostWatched = 4096;  // buckets whose plans may change later
constexpr Nanoseconds kNextTry =
    std::chrono::minutes(10);  // after a change that failed: it held operations back

uint64_t to_ns(double ns) {
  return static_cast<uint64_t>(std::llround(std::clamp(ns, 0.0, 3.6e12)));
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    std::string part = list.substr(at, end - at);
    if (!part.empty() && std::find(parts.begin(), parts.end(), part) == parts.end()) {
      parts.push_back(std::move(part));
    }
    at = end + 1;
  }
  return parts;
}

planner::CodecChoice to_choice(const std::vector<std::pair<std::string, uint32_t>>& others,
                               const std::string& codec) {
  for (const auto& [name, place] : others) {
    if (name == codec) {
      return {planner::CodecChoice::Kind::kOther, place};
    }
  }
  return {codec == "none" ? planner::CodecChoice::Kind::kBypass : planner::CodecChoice::Kind::kPolicy, 0};
}

// What a change between codecs of unlike bookkeeping loses: it is not made while the bucket is in use.
bool has_momentum(const config::CompressionPolicy& policy) {
  return policy.defaults.momentum > 0 ||
         std::any_of(policy.rules.begin(), policy.rules.end(),
                     [](const config::PolicyRule& rule) { return rule.set.momentum.value_or(0) > 0; });
}

}  // namespace

JobPlanner::JobPlanner(Scheduler& scheduler, Nanoseconds operation_timeout, uint32_t nodes,
                       uint32_t max_payload, Hooks hooks)
    : scheduler_(scheduler),
      wait_(std::min(kPatience, operation_timeout / 2)),
      nodes_(nodes),
      max_payload_(max_payload),
      hooks_(std::move(hooks)),
      changes_(scheduler, wait_, nodes,
               {hooks_.send, [this](uint32_t bucket, const Plan& plan,
                                    const Status& status) { changed(bucket, plan, status); }}),
      patience_(scheduler),
      again_(scheduler) {}

// Whether there is anything to choose.
bool JobPlanner::decides(const config::PlanOptions& options) const {
  return nodes_ > 1 && (options.algorithm == "auto" || options.bypass == "auto" || !options.codecs.empty() ||
                        (options.segment == 0 && planner::segment_sizes(max_payload_).size() > 1));
}

JobPlanner::Candidates JobPlanner::candidates(const config::CompressionPolicy& policy) const {
  const std::vector<std::string> others = split(hooks_.options().codecs);
  Candidates out;
  out.settings = plan_candidates(policy, others);
  for (const std::string& codec : others) {
    const auto found = std::find_if(out.settings.begin(), out.settings.end(),
                                    [&codec](const auto& each) { return each.codec == codec; });
    if (found != out.settings.end()) {
      out.others.emplace_back(codec, static_cast<uint32_t>(found - out.settings.begin()));
    }
  }
  return out;
}

// Nothing is known, or the configuration was read again since.
bool JobPlanner::stale() const {
  const Result<config::CompressionPolicy> policy = config::policy_from_json(hooks_.policy());
  return !costs_ || (policy.ok() && candidates(*policy) != known_);
}

void JobPlanner::begin() {
  begun_ = true;
  if (decides(hooks_.options())) {
    measure();
  }
}

void JobPlanner::rank_left() {
  stopped_ = true;
  again_.stop();
  answer_waiting();
}

void JobPlanner::stop() {
  stopped_ = true;
  waiting_.clear();
  patience_.stop();
  again_.stop();
}

void JobPlanner::measure() {
  if (measuring_ || stopped_ || !begun_) {
    return;
  }
  const config::PlanOptions options = hooks_.options();
  const Json policy_json = hooks_.policy();
  const Result<config::CompressionPolicy> policy = config::policy_from_json(policy_json);
  if (!policy.ok()) {
    return;
  }
  again_.stop();
  measuring_ = true;
  ++round_;
  asked_ = candidates(*policy);
  answers_.clear();
  const Json document{
      {"type", "measure"}, {"round", round_}, {"policy", policy_json}, {"codecs", split(options.codecs)}};
  for (uint32_t node = 0; node < nodes_; ++node) {
    hooks_.send(node, document);
  }
}

Status JobPlanner::document(uint32_t node, const std::string& type, const Json& document) {
  return type == "measured" ? measured(node, document) : changes_.document(node, type, document);
}

Status JobPlanner::measured(uint32_t node, const Json& document) {
  Result<Measured> measured = read_measured(document, asked_.settings.size());
  GRADWIRE_RETURN_IF_ERROR(measured.status());
  if (!measuring_ || measured->round != round_ ||
      !answers_.emplace(node, std::move(measured->costs)).second) {
    return {Code::kCorrupt, "measured: round " + std::to_string(measured->round) + " is not asked for"};
  }
  if (answers_.size() == nodes_) {
    round_over();
  }
  return ok_status();
}

void JobPlanner::round_over() {
  measuring_ = false;
  std::vector<planner::NodeCosts> all;
  for (auto& [node, costs] : answers_) {
    all.push_back(std::move(costs));
  }
  answers_.clear();
  costs_ = planner::slowest(all);
  known_ = asked_;
  if (stopped_) {
    return;
  }
  if (stale()) {
    measure();
    return;
  }
  answer_waiting();
  replan();
  const Nanoseconds pause = std::chrono::duration_cast<Nanoseconds>(hooks_.options().remeasure);
  if (pause.count() > 0) {
    again_.start(pause, [this] { measure(); });
  }
}

void JobPlanner::plan(uint32_t bucket, const Manifest& manifest, Planned done) {
  waiting_.push_back({bucket, manifest, std::move(done)});
  if (!decides(hooks_.options()) || stopped_ || (!stale() && !measuring_)) {
    answer_waiting();
    return;
  }
  measure();
  if (!costs_ || stale()) {
    if (!patience_.running()) {
      patience_.start(wait_, [this] {
        log_warning(
            "plan_without_measurements",
            {{"cause", "not all nodes have measured in time; buckets are reduced as the policy says"}});
        costs_.reset();
        answer_waiting();
      });
    }
    return;
  }
  answer_waiting();  // by what is known; the round under way may change it
}

void JobPlanner::answer_waiting() {
  patience_.stop();
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    answer(waiting);
  }
}

void JobPlanner::answer(const Waiting& waiting) {
  const Json policy_json = hooks_.policy();
  const Result<config::CompressionPolicy> policy = config::policy_from_json(policy_json);
  if (!policy.ok()) {
    waiting.done(policy_json, {});  // the members say what is wrong with it
    return;
  }
  const Plan plan = decide(waiting.manifest, *policy);
  if (plan.expected_ns > 0) {
    log_info("plan", {{"bucket", hooks_.label(waiting.bucket)},
                      {"plan", describe(plan)},
                      {"expected_us", std::to_string(plan.expected_ns / 1000)},
                      {"exact_us", std::to_string(plan.exact_ns / 1000)}});
    if (buckets_.size() >= kMostWatched) {
      buckets_.erase(buckets_.begin());
    }
    buckets_[waiting.bucket] = {waiting.manifest, *policy, plan, scheduler_.now()};
  }
  waiting.done(policy_json, plan);
}

planner::Allowed JobPlanner::allowed(const Manifest& manifest, const config::CompressionPolicy& policy,
                                     const Candidates& candidates, bool coded) const {
  const config::PlanOptions options = hooks_.options();
  planner::Allowed allowed;
  const bool tallies = std::any_of(candidates.others.begin(), candidates.others.end(),
                                   [](const auto& other) { return other.first == "sign"; });
  const bool direct =
      !tallies && algorithm_for(manifest, policy, engine::Algorithm::kDirect) == engine::Algorithm::kDirect;
  if (options.algorithm == "direct" && direct) {
    allowed.algorithms = {planner::Algorithm::kDirect};
  } else if (options.algorithm == "auto" && direct && nodes_ > 2) {
    allowed.algorithms = {planner::Algorithm::kRing, planner::Algorithm::kDirect};
  }
  if (coded) {
    allowed.codecs.clear();
    if (options.bypass != "always") {
      allowed.codecs.push_back({});
      for (const auto& [name, place] : candidates.others) {
        allowed.codecs.push_back({planner::CodecChoice::Kind::kOther, place});
      }
    }
    if (options.bypass != "never") {
      allowed.codecs.push_back({planner::CodecChoice::Kind::kBypass, 0});
    }
  }
  if (options.segment != 0) {
    const auto wanted = static_cast<uint32_t>(std::min<uint64_t>(options.segment, max_payload_));
    allowed.segments = {std::max(wanted, std::min(planner::kSmallestSegment, max_payload_))};
  } else {
    allowed.segments = planner::segment_sizes(max_payload_);
  }
  return allowed;
}

Plan JobPlanner::decide(const Manifest& manifest, const config::CompressionPolicy& policy) const {
  const Candidates may = candidates(policy);
  const planner::Workload workload = plan_workload(manifest, policy, may.settings, nodes_);
  const bool coded = std::any_of(workload.parts.begin(), workload.parts.end(),
                                 [](const auto& part) { return part.codec.has_value(); });
  const planner::Allowed choices = allowed(manifest, policy, may, coded);
  planner::Decision decision;
  decision.choice = {choices.algorithms.front(), choices.codecs.front(), choices.segments.front()};
  if (costs_ && known_ == may) {
    decision = planner::choose(workload, *costs_, choices);
  }
  Plan plan;
  plan.algorithm = decision.choice.algorithm == planner::Algorithm::kDirect ? engine::Algorithm::kDirect
                                                                            : engine::Algorithm::kRing;
  plan.segment = decision.choice.segment_bytes;
  if (decision.choice.codec.kind == planner::CodecChoice::Kind::kBypass) {
    plan.codec = "none";
  } else if (decision.choice.codec.kind == planner::CodecChoice::Kind::kOther) {
    plan.codec = may.settings[decision.choice.codec.other].codec;
  }
  plan.expected_ns = to_ns(decision.expected.total_ns);
  plan.exact_ns = to_ns(decision.exact_ns);
  return plan;
}

void JobPlanner::replan() {
  for (auto& [id, bucket] : buckets_) {
    replan(id, bucket);
  }
}

void JobPlanner::replan(uint32_t id, Bucket& bucket) {
  if (changes_.changing(id) || scheduler_.now() - bucket.since < kSettled ||
      candidates(bucket.policy) != known_) {
    return;
  }
  const Plan better = decide(bucket.manifest, bucket.policy);
  const bool other_codec = better.codec != bucket.plan.codec;
  if (better.same_way(bucket.plan) || (other_codec && has_momentum(bucket.policy))) {
    return;
  }
  const planner::Workload workload = plan_workload(bucket.manifest, bucket.policy, known_.settings, nodes_);
  const planner::Choice current{bucket.plan.algorithm == engine::Algorithm::kDirect
                                    ? planner::Algorithm::kDirect
                                    : planner::Algorithm::kRing,
                                to_choice(known_.others, bucket.plan.codec), bucket.plan.segment};
  const double now_ns = planner::estimate(workload, *costs_, current).total_ns;
  if (now_ns >= kGain * static_cast<double>(better.expected_ns)) {
    bucket.since = scheduler_.now();
    changes_.begin(id, better);
  }
}

void JobPlanner::changed(uint32_t id, const Plan& plan, const Status& status) {
  const auto found = buckets_.find(id);
  if (found == buckets_.end()) {
    return;
  }
  log_info(status.ok() ? "plan_changed" : "plan_kept",
           {{"bucket", hooks_.label(id)},
            {"plan", describe(plan)},
            {"cause", status.ok() ? "expected " + std::to_string(plan.expected_ns / 1000) + " us"
                                  : status.message()}});
  found->second.since = scheduler_.now() + (status.ok() ? Nanoseconds(0) : kNextTry);
  if (status.ok()) {
    found->second.plan = plan;
  } else if (status.code() == Code::kNotFound) {
    buckets_.erase(found);  // it is destroyed
  }
}

}  // namespace gradwire::control
