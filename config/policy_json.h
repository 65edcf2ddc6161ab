// The compression policy as the JSON document that a job's coordinator hands to all nodes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config/base/result.h"
#include "config/policy.h"

namespace gradwire::config {

inline constexpr int kPolicyVersion = 1;

// {"version": 1, "defaults": {all settings}, "rules": [{"match": GLOB, settings of the rule...}]}
nlohmann::json policy_to_json(const CompressionPolicy& policy);

// Accepts exactly that form: unknown keys, values outside an option's limits, wrong types and other versions
// are kCorrupt (what arrives here was written by a peer). Gives back what policy_to_json was given.
Result<CompressionPolicy> policy_from_json(const nlohmann::json& document);

}  // namespace gradwire::config
