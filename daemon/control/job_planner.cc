#include "daemon/control/job_planner.h"

#include <algorithm>
#include <utility>

#include "config/policy_json.h"
#include "daemon/control/log.h"
#include "daemon/control/plan_candidates.h"

namespace gradwire::control {
namespace {

constexpr size_t kMostWatchedBytes = size_t{64}
                                     << 20;  // of manifests of buckets whose plans may change later
constexpr size_t kMostAtOnce = 256;          // buckets that are looked at before others have the thread
constexpr Nanoseconds kNextTry =
    std::chrono::minutes(10);  // after a change that failed: it held operations back

size_t bytes_of(const Manifest& manifest) {
  size_t bytes = 500 + manifest.name.size();
  for (const auto& [name, elements] : manifest.layers) {
    bytes += 50 + name.size();
  }
  return bytes;
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
      again_(scheduler),
      retry_(scheduler),
      rest_(scheduler) {}

// Of buckets that are created now. Most have the one of the bucket before.
JobPlanner::Policy JobPlanner::policy() {
  Json json = hooks_.policy();
  if (json != policy_json_) {
    Result<config::CompressionPolicy> parsed = config::policy_from_json(json);
    policy_ = parsed.ok() ? std::make_shared<const config::CompressionPolicy>(*std::move(parsed)) : nullptr;
    policy_json_ = std::move(json);
  }
  return policy_;
}

bool JobPlanner::decides(const Policy& policy) const {
  return policy && control::decides(*policy, hooks_.options(), nodes_, max_payload_);
}

// Something is not known: the configuration was read again since.
bool JobPlanner::stale(const config::CompressionPolicy& policy) const {
  if (!costs_) {
    return true;
  }
  const PlanCandidates candidates = candidates_of(policy, hooks_.options());
  return std::any_of(candidates.settings.begin(), candidates.settings.end(), [this](const auto& each) {
    return std::find(known_.begin(), known_.end(), each) == known_.end();
  });
}

// What may be chosen for new buckets, then for those in use, which may have been created with another policy.
std::vector<config::PolicySettings> JobPlanner::to_measure(const config::CompressionPolicy& policy) const {
  std::vector<config::PolicySettings> all = candidates_of(policy, hooks_.options()).settings;
  const config::CompressionPolicy* looked_at = &policy;
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.policy.get() == looked_at) {
      continue;
    }
    looked_at = bucket.policy.get();
    for (const config::PolicySettings& settings : candidates_of(*looked_at, hooks_.options()).settings) {
      add_candidate(settings, &all);
    }
  }
  return all;
}

void JobPlanner::begin() {
  begun_ = true;
  if (decides(policy())) {
    measure();
  }
}

void JobPlanner::options_changed() {
  if (!begun_ || stopped_) {
    return;
  }
  if (decides(policy())) {
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
  if (const auto found = buckets_.find(bucket); found != buckets_.end()) {
    watched_bytes_ -= bytes_of(found->second.manifest);
    buckets_.erase(found);
  }
  changes_.forget(bucket);
}

void JobPlanner::rank_left() {
  stopped_ = true;
  again_.stop();
  retry_.stop();
  rest_.stop();
  answer_waiting();
}

void JobPlanner::stop() {
  stopped_ = true;
  waiting_.clear();
  patience_.stop();
  again_.stop();
  retry_.stop();
  rest_.stop();
}

void JobPlanner::measure() {
  if (measuring_ || stopped_ || !begun_) {
    return;
  }
  const Policy current = policy();
  if (!current) {
    return;
  }
  again_.stop();
  measuring_ = true;
  ++round_;
  asked_ = to_measure(*current);
  answers_.clear();
  const Json document = measure_document({round_, asked_});
  for (uint32_t node = 0; node < nodes_; ++node) {
    hooks_.send(node, document);
  }
}

Status JobPlanner::document(uint32_t node, const std::string& type, const Json& document) {
  return type == "measured" ? measured(node, document) : changes_.document(node, type, document);
}

Status JobPlanner::measured(uint32_t node, const Json& document) {
  Result<Measured> measured = read_measured(document, asked_.size());
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
  const Policy current = policy();
  if (current && stale(*current)) {
    measure();
    return;
  }
  answer_waiting();
  replan();
  const Nanoseconds pause = std::chrono::duration_cast<Nanoseconds>(hooks_.options().remeasure);
  if (pause.count() > 0 && decides(current)) {
    again_.start(pause, [this] { measure(); });
  }
}

void JobPlanner::plan(uint32_t bucket, const Manifest& manifest, Planned done) {
  waiting_.push_back({bucket, manifest, std::move(done)});
  const Policy current = policy();
  if (stopped_ || !decides(current) || (!stale(*current) && !measuring_)) {
    answer_waiting();
    return;
  }
  measure();
  if (stale(*current)) {
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

PlanDecision JobPlanner::decision(const Bucket& bucket) const {
  config::PlanOptions options = hooks_.options();
  const std::string& codec = bucket.plan.codec;
  const bool keeps = has_momentum(*bucket.policy);
  if (keeps && codec != "policy" && codec != "none") {
    options.codecs += "," + codec;  // also where it is not among them any more
  }
  PlanDecision decision(bucket.manifest, *bucket.policy, options, nodes_, max_payload_);
  if (keeps) {
    decision.keep_codec(codec);
  }
  return decision;
}

// None: what may be chosen is not measured.
std::optional<planner::NodeCosts> JobPlanner::costs_for(const PlanDecision& decision) const {
  return costs_ ? costs_of(decision.candidates(), known_, *costs_) : std::nullopt;
}

void JobPlanner::answer(Waiting waiting) {
  const Policy current = policy();
  if (!current) {
    waiting.done(policy_json_, {});  // the members say what is wrong with it
    return;
  }
  const PlanDecision may(waiting.manifest, *current, hooks_.options(), nodes_, max_payload_);
  const std::optional<planner::NodeCosts> costs = costs_for(may);
  const Plan plan = may.best(costs ? &*costs : nullptr);
  const bool measured = plan.expected_ns > 0;
  if (measured) {
    log_info("plan", {{"bucket", hooks_.label(waiting.bucket)},
                      {"plan", describe(plan)},
                      {"expected_us", std::to_string(plan.expected_ns / 1000)},
                      {"exact_us", std::to_string(plan.exact_ns / 1000)}});
  }
  if (nodes_ > 1) {
    watch(waiting.bucket, {std::move(waiting.manifest), current, plan,
                           scheduler_.now() + (measured ? kSettled : Nanoseconds(0))});
  }
  waiting.done(policy_json_, plan);
}

void JobPlanner::watch(uint32_t id, Bucket bucket) {
  const size_t bytes = bytes_of(bucket.manifest);
  if (watched_bytes_ + bytes > kMostWatchedBytes) {
    if (!std::exchange(told_of_limit_, true)) {
      log_warning("plans_fixed", {{"bucket", hooks_.label(id)},
                                  {"cause",
                                   "the manifests of this job's buckets take more than 64 MiB; the plans of "
                                   "this and of further ones stay as they are"}});
    }
    return;
  }
  watched_bytes_ += bytes;
  buckets_[id] = std::move(bucket);
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
  for (size_t looked_at = 0; !stopped_ && !due_.empty() && !changes_.any(); ++looked_at) {
    if (looked_at == kMostAtOnce) {
      rest_.start(Nanoseconds(0), [this] { replan_next(); });
      return;
    }
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
  const PlanDecision may = decision(bucket);
  const std::optional<planner::NodeCosts> costs = costs_for(may);
  const Plan better = may.best(costs ? &*costs : nullptr, &bucket.plan);
  if (better.same_way(bucket.plan)) {
    return;
  }
  bucket.pinned = !may.allows(bucket.plan);
  if (!bucket.pinned) {
    const double now_ns = costs ? may.expected_ns(*costs, bucket.plan) : 0;
    if (!costs || now_ns < kGain * static_cast<double>(better.expected_ns)) {
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
    log_info(
        status.ok() ? "plan_changed" : "plan_kept",
        {{"bucket", hooks_.label(id)},
         {"plan", describe(plan)},
         {"cause", !status.ok()           ? status.message()
                   : found->second.pinned ? "the plan before is no longer allowed"
                                          : "expected " + std::to_string(plan.expected_ns / 1000) + " us"}});
    const bool soon = status.ok() || status.code() == Code::kUnavailable;
    found->second.not_before = scheduler_.now() + (soon ? kSettled : kNextTry);
    found->second.failed = !status.ok();
    if (status.ok()) {
      found->second.plan = plan;
    } else if (status.code() == Code::kNotFound) {
      destroyed(id);
    }
    try_again();
  }
  replan_next();
}

}  // namespace gradwire::control
