// What a bucket's plan may be, and which is the best: from the policy, the plan options and measured costs.
//
// Pure functions; the coordinator decides alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "daemon/control/manifest.h"
#include "daemon/control/plan_document.h"
#include "daemon/planner/planner.h"

namespace gradwire::control {

// The codecs that may be chosen, in the order in which nodes tell their costs.
struct PlanCandidates {
  std::vector<config::PolicySettings> settings;
  std::vector<std::pair<std::string, uint32_t>> others;  // codecs besides the policy's: name, place
  bool operator==(const PlanCandidates&) const = default;
};

// The names in plan.codecs.
std::vector<std::string> codec_list(const std::string& codecs);
PlanCandidates candidates_of(const config::CompressionPolicy& policy, const config::PlanOptions& options);

// The costs of the candidates from those of what was measured; none: one of them was not.
std::optional<planner::NodeCosts> costs_of(const PlanCandidates& candidates,
                                           const std::vector<config::PolicySettings>& measured,
                                           const planner::NodeCosts& costs);

// Whether the options leave a choice, for which it is worth measuring.
bool decides(const config::CompressionPolicy& policy, const config::PlanOptions& options, uint32_t nodes,
             uint32_t max_payload);

// What a change between codecs of unlike bookkeeping loses: a bucket in use keeps its codec.
bool has_momentum(const config::CompressionPolicy& policy);

class PlanDecision {
 public:
  PlanDecision(const Manifest& manifest, const config::CompressionPolicy& policy,
               const config::PlanOptions& options, uint32_t nodes, uint32_t max_payload);

  // The codec that a bucket in use has, and must keep: one of `options`, or what the policy says, or none.
  void keep_codec(const std::string& codec);
  // Whether the options allow it.
  bool allows(const Plan& plan) const;
  // The fastest by `costs`, which are of this decision's candidates. Without them (nullptr) what comes first
  // of what is allowed, or as `current` has it.
  Plan best(const planner::NodeCosts* costs, const Plan* current = nullptr) const;
  // What an operation of a plan takes by `costs`.
  double expected_ns(const planner::NodeCosts& costs, const Plan& plan) const;
  const PlanCandidates& candidates() const { return candidates_; }

 private:
  planner::Choice choice_of(const Plan& plan) const;
  std::string codec_of(const planner::CodecChoice& choice) const;

  PlanCandidates candidates_;
  planner::Workload workload_;
  planner::Allowed allowed_;
};

}  // namespace gradwire::control
