#include "daemon/control/plan_decision.h"

#include <algorithm>
#include <cmath>

#include "daemon/control/bucket_reducer.h"
#include "daemon/control/plan_candidates.h"

namespace gradwire::control {
namespace {

uint64_t to_ns(double ns) {
  return static_cast<uint64_t>(std::llround(std::clamp(ns, 0.0, 3.6e12)));
}

planner::Algorithm to_planner(engine::Algorithm algorithm) {
  return algorithm == engine::Algorithm::kDirect ? planner::Algorithm::kDirect : planner::Algorithm::kRing;
}

template <typename T>
bool holds(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

std::vector<std::string> codec_list(const std::string& codecs) {
  std::vector<std::string> names;
  for (size_t at = 0; at < codecs.size();) {
    const size_t end = std::min(codecs.find(',', at), codecs.size());
    std::string name = codecs.substr(at, end - at);
    if (!name.empty() && !holds(names, name)) {
      names.push_back(std::move(name));
    }
    at = end + 1;
  }
  return names;
}

PlanCandidates candidates_of(const config::CompressionPolicy& policy, const config::PlanOptions& options) {
  const std::vector<std::string> others = codec_list(options.codecs);
  PlanCandidates out;
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

std::optional<planner::NodeCosts> costs_of(const PlanCandidates& candidates,
                                           const std::vector<config::PolicySettings>& measured,
                                           const planner::NodeCosts& costs) {
  planner::NodeCosts own{costs.link, costs.exact, {}};
  for (const config::PolicySettings& settings : candidates.settings) {
    const std::optional<uint32_t> place = place_of(settings, measured);
    if (!place) {
      return std::nullopt;
    }
    own.codecs.push_back(costs.codecs[*place]);
  }
  return own;
}

bool decides(const config::CompressionPolicy& policy, const config::PlanOptions& options, uint32_t nodes,
             uint32_t max_payload) {
  const bool codecs =
      policy.defaults.codec != "none" ||
      std::any_of(policy.rules.begin(), policy.rules.end(),
                  [](const config::PolicyRule& rule) { return rule.set.codec.value_or("none") != "none"; });
  return nodes > 1 && ((options.algorithm == "auto" && nodes > 2) ||
                       (codecs && (options.bypass == "auto" || !options.codecs.empty())) ||
                       (options.segment == 0 && planner::segment_sizes(max_payload).size() > 1));
}

bool has_momentum(const config::CompressionPolicy& policy) {
  return policy.defaults.momentum > 0 ||
         std::any_of(policy.rules.begin(), policy.rules.end(),
                     [](const config::PolicyRule& rule) { return rule.set.momentum.value_or(0) > 0; });
}

PlanDecision::PlanDecision(const Manifest& manifest, const config::CompressionPolicy& policy,
                           const config::PlanOptions& options, uint32_t nodes, uint32_t max_payload)
    : candidates_(candidates_of(policy, options)),
      workload_(plan_workload(manifest, policy, candidates_.settings, nodes)) {
  const bool coded = std::any_of(workload_.parts.begin(), workload_.parts.end(),
                                 [](const auto& part) { return part.codec.has_value(); });
  const bool direct =
      algorithm_for(manifest, policy, engine::Algorithm::kDirect) == engine::Algorithm::kDirect;
  if (options.algorithm == "direct" && direct) {
    allowed_.algorithms = {planner::Algorithm::kDirect};
  } else if (options.algorithm == "auto" && direct && nodes > 2) {
    allowed_.algorithms = {planner::Algorithm::kRing, planner::Algorithm::kDirect};
  }
  if (coded) {
    allowed_.codecs.clear();
    if (options.bypass != "always") {
      allowed_.codecs.push_back({});
      for (const auto& [name, place] : candidates_.others) {
        allowed_.codecs.push_back({planner::CodecChoice::Kind::kOther, place});
      }
    }
    if (options.bypass != "never") {
      allowed_.codecs.push_back({planner::CodecChoice::Kind::kBypass, 0});
    }
  }
  if (options.segment != 0) {
    allowed_.segments = {static_cast<uint32_t>(std::min<uint64_t>(options.segment, max_payload))};
  } else {
    allowed_.segments = planner::segment_sizes(max_payload);
  }
}

planner::Choice PlanDecision::choice_of(const Plan& plan) const {
  planner::Choice choice{to_planner(plan.algorithm), {}, plan.segment};
  if (plan.codec == "none") {
    choice.codec.kind = planner::CodecChoice::Kind::kBypass;
  }
  for (const auto& [name, place] : candidates_.others) {
    if (name == plan.codec) {
      choice.codec = {planner::CodecChoice::Kind::kOther, place};
    }
  }
  return choice;
}

std::string PlanDecision::codec_of(const planner::CodecChoice& choice) const {
  switch (choice.kind) {
    case planner::CodecChoice::Kind::kBypass:
      return "none";
    case planner::CodecChoice::Kind::kOther:
      return candidates_.settings[choice.other].codec;
    case planner::CodecChoice::Kind::kPolicy:
      break;
  }
  return "policy";
}

void PlanDecision::keep_codec(const std::string& codec) {
  allowed_.codecs = {choice_of({.codec = codec}).codec};
}

bool PlanDecision::allows(const Plan& plan) const {
  const planner::Choice choice = choice_of(plan);
  return holds(allowed_.algorithms, choice.algorithm) && holds(allowed_.segments, choice.segment_bytes) &&
         holds(allowed_.codecs, choice.codec) && codec_of(choice.codec) == plan.codec;
}

Plan PlanDecision::best(const planner::NodeCosts* costs, const Plan* current) const {
  planner::Decision decision;
  if (costs != nullptr) {
    decision = planner::choose(workload_, *costs, allowed_);
  } else {
    planner::Choice& choice = decision.choice;
    choice = {allowed_.algorithms.front(), allowed_.codecs.front(), allowed_.segments.front()};
    if (current != nullptr) {
      const planner::Choice now = choice_of(*current);
      choice.algorithm = holds(allowed_.algorithms, now.algorithm) ? now.algorithm : choice.algorithm;
      choice.codec = holds(allowed_.codecs, now.codec) && codec_of(now.codec) == current->codec
                         ? now.codec
                         : choice.codec;
      choice.segment_bytes =
          holds(allowed_.segments, now.segment_bytes) ? now.segment_bytes : choice.segment_bytes;
    }
  }
  Plan plan;
  plan.algorithm = decision.choice.algorithm == planner::Algorithm::kDirect ? engine::Algorithm::kDirect
                                                                            : engine::Algorithm::kRing;
  plan.segment = decision.choice.segment_bytes;
  plan.codec = codec_of(decision.choice.codec);
  plan.expected_ns = to_ns(decision.expected.total_ns);
  plan.exact_ns = to_ns(decision.exact_ns);
  return plan;
}

double PlanDecision::expected_ns(const planner::NodeCosts& costs, const Plan& plan) const {
  return planner::estimate(workload_, costs, choice_of(plan)).total_ns;
}

}  // namespace gradwire::control
