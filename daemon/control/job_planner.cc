#include "daemon/control/job_planner.h"

#include <algorithm>
#include <utility>

#include "config/policy_json.h"
#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

constexpr size_t kMostWatched = 4096;  // buckets whose plans may change later
constexpr Nanoseconds kNextTry =
    std::chrono::minutes(10);  // after a change that failed: it held operations back

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
      again_(scheduler),
      retry_(scheduler) {}

bool JobPlanner::decides(const Result<config::CompressionPolicy>& policy) const {
  return policy.ok() && control::decides(*policy, hooks_.options(), nodes_, max_payload_);
}

bool JobPlanner::decides() const {
  return decides(config::policy_from_json(hooks_.policy()));
}

// Nothing is known, or the configuration was read again since.
bool JobPlanner::stale(const config::CompressionPolicy& policy) const {
  return !costs_ || candidates_of(policy, hooks_.options()) != known_;
}

void JobPlanner::begin() {
  begun_ = true;
  if (decides()) {
    measure();
  }
}

void JobPlanner::options_changed() {
  if (!begun_ || stopped_) {
    return;
  }
  if (decides()) {
    measure();
  } else {
    again_.stop();
    answer_waiting();
  }
  for (auto& [id, bucket] : buckets_) {
    bucket.not_before = scheduler_.now();
  }
  replan();
}

void JobPlanner::destroyed(uint32_t bucket) {
  buckets_.erase(bucket);
  changes_.forget(bucket);
}

void JobPlanner::rank_left() {
  stopped_ = true;
  again_.stop();
  retry_.stop();
  answer_waiting();
}

void JobPlanner::stop() {
  stopped_ = true;
  waiting_.clear();
  patience_.stop();
  again_.stop();
  retry_.stop();
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
  asked_ = candidates_of(*policy, options);
  answers_.clear();
  const Json document{{"type", "measure"},
                      {"round", round_},
                      {"policy", policy_json},
                      {"codecs", codec_list(options.codecs)}};
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
  const Result<config::CompressionPolicy> policy = config::policy_from_json(hooks_.policy());
  if (policy.ok() && stale(*policy)) {
    measure();
    return;
  }
  answer_waiting();
  replan();
  const Nanoseconds pause = std::chrono::duration_cast<Nanoseconds>(hooks_.options().remeasure);
  if (pause.count() > 0 && decides()) {
    again_.start(pause, [this] { measure(); });
  }
}

void JobPlanner::plan(uint32_t bucket, const Manifest& manifest, Planned done) {
  waiting_.push_back({bucket, manifest, std::move(done)});
  const Result<config::CompressionPolicy> policy = config::policy_from_json(hooks_.policy());
  if (stopped_ || !decides(policy) || (!stale(*policy) && !measuring_)) {
    answer_waiting();
    return;
  }
  measure();
  if (stale(*policy)) {
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
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    answer(std::move(waiting));
  }
}

PlanDecision JobPlanner::decision(const Manifest& manifest, const config::CompressionPolicy& policy) const {
  return {manifest, policy, hooks_.options(), nodes_, max_payload_};
}

// nullptr: what may be chosen is not measured.
const planner::NodeCosts* JobPlanner::costs_for(const PlanDecision& decision) const {
  return costs_ && known_ == decision.candidates() ? &*costs_ : nullptr;
}

void JobPlanner::answer(Waiting waiting) {
  const Json policy_json = hooks_.policy();
  const Result<config::CompressionPolicy> policy = config::policy_from_json(policy_json);
  if (!policy.ok()) {
    waiting.done(policy_json, {});  // the members say what is wrong with it
    return;
  }
  const PlanDecision may = decision(waiting.manifest, *policy);
  const Plan plan = may.best(costs_for(may));
  const bool measured = plan.expected_ns > 0;
  if (measured) {
    log_info("plan", {{"bucket", hooks_.label(waiting.bucket)},
                      {"plan", describe(plan)},
                      {"expected_us", std::to_string(plan.expected_ns / 1000)},
                      {"exact_us", std::to_string(plan.exact_ns / 1000)}});
  }
  if (nodes_ > 1 && buckets_.size() < kMostWatched) {
    buckets_[waiting.bucket] = {std::move(waiting.manifest), *policy, plan,
                                scheduler_.now() + (measured ? kSettled : Nanoseconds(0))};
  }
  waiting.done(policy_json, plan);
}

void JobPlanner::replan() {
  due_.clear();
  for (const auto& [id, bucket] : buckets_) {
    due_.push_back(id);
  }
  replan_next();
}

// One after the other, so that a node's memory and workshop have to do with one at a time.
void JobPlanner::replan_next() {
  while (!stopped_ && !due_.empty() && !changes_.any()) {
    const uint32_t id = due_.front();
    due_.pop_front();
    if (const auto found = buckets_.find(id); found != buckets_.end()) {
      replan(id, found->second);
    }
  }
}

void JobPlanner::replan(uint32_t id, Bucket& bucket) {
  if (scheduler_.now() < bucket.not_before) {
    return;
  }
  bucket.failed = false;
  PlanDecision may = decision(bucket.manifest, bucket.policy);
  const bool keeps_codec = has_momentum(bucket.policy);
  if (keeps_codec) {
    may.keep_codec(bucket.plan.codec);
  }
  const planner::NodeCosts* const costs = costs_for(may);
  const Plan better = may.best(costs, &bucket.plan);
  if (better.same_way(bucket.plan) || (keeps_codec && better.codec != bucket.plan.codec)) {
    return;
  }
  if (may.allows(bucket.plan)) {
    const double now_ns = costs == nullptr ? 0 : may.expected_ns(*costs, bucket.plan);
    if (costs == nullptr || now_ns < kGain * static_cast<double>(better.expected_ns)) {
      return;
    }
  }
  changes_.begin(id, better);
}

// Also where nothing is measured that would bring the bucket up again.
void JobPlanner::try_again() {
  const bool any =
      std::any_of(buckets_.begin(), buckets_.end(), [](const auto& entry) { return entry.second.failed; });
  if (any && !stopped_ && !retry_.running()) {
    retry_.start(kSettled, [this] {
      replan();
      try_again();
    });
  }
}

void JobPlanner::changed(uint32_t id, const Plan& plan, const Status& status) {
  if (const auto found = buckets_.find(id); found != buckets_.end()) {
    log_info(status.ok() ? "plan_changed" : "plan_kept",
             {{"bucket", hooks_.label(id)},
              {"plan", describe(plan)},
              {"cause", status.ok() ? "expected " + std::to_string(plan.expected_ns / 1000) + " us"
                                    : status.message()}});
    const bool soon = status.ok() || status.code() == Code::kUnavailable;
    found->second.not_before = scheduler_.now() + (soon ? kSettled : kNextTry);
    found->second.failed = !status.ok();
    if (status.ok()) {
      found->second.plan = plan;
    } else if (status.code() == Code::kNotFound) {
      buckets_.erase(found);  // it is destroyed
    }
    try_again();
  }
  replan_next();
}

}  // namespace gradwire::control
