// The codecs that a job's planner may choose from, in an order that every node works out alike, and what a
// bucket has for each of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/policy.h"
#include "daemon/control/manifest.h"
#include "daemon/planner/planner.h"

namespace gradwire::control {

inline constexpr size_t kMaxCandidates = 24;

// The settings of the policy, defaults first, without those of codec none; the defaults under each of the
// other codecs; and what these send small layers by. Each once, at most kMaxCandidates.
std::vector<config::PolicySettings> plan_candidates(const config::CompressionPolicy& policy,
                                                    const std::vector<std::string>& others);

// Those of what is sent exactly.
config::PolicySettings exact_settings();

// The settings that all of the bucket's layers are sent by, as plan_candidates() has them, or
// exact_settings(). Small layers that go by another codec than their own count only where there are no
// others. None: they differ.
std::optional<config::PolicySettings> sole_settings(const Manifest& manifest,
                                                    const config::CompressionPolicy& policy);

// Appends what is not there yet, up to kMaxCandidates.
void add_candidate(const config::PolicySettings& settings, std::vector<config::PolicySettings>* candidates);

// Where these settings are among the candidates; or settings of the same codec (some were beyond
// kMaxCandidates); or nowhere.
std::optional<uint32_t> place_of(const config::PolicySettings& settings,
                                 const std::vector<config::PolicySettings>& candidates);

// How many elements are sent by which candidate; what has none counts as the first.
planner::Workload plan_workload(const Manifest& manifest, const config::CompressionPolicy& policy,
                                const std::vector<config::PolicySettings>& candidates, uint32_t nodes);

// The policy as a plan has it: `codec` is "policy" (as it is), "none" or another codec, which replaces what
// the policy names where that is not none.
config::CompressionPolicy planned_policy(const config::CompressionPolicy& policy, const std::string& codec);

}  // namespace gradwire::control
