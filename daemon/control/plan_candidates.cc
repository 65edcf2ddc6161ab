#include "daemon/control/plan_candidates.h"

#include <algorithm>
#include <map>

#include "daemon/control/bucket_reducer.h"

namespace gradwire::control {
namespace {

config::PolicySettings settings_of(const config::CompressionPolicy& policy, const config::PolicyRule& rule) {
  config::PolicySettings settings = policy.defaults;
  config::for_each_policy_setting([&](const char*, auto setting, auto override) {
    if ((rule.set.*override).has_value()) {
      settings.*setting = *(rule.set.*override);
    }
  });
  return settings;
}

// What is measured does not depend on these.
config::PolicySettings measured(config::PolicySettings settings) {
  settings.warm_start_steps = 0;
  settings.warm_start = config::PolicySettings().warm_start;
  settings.dense_below = 0;
  settings.edge_density_factor = 1;
  return settings;
}

}  // namespace

config::PolicySettings exact_settings() {
  config::PolicySettings settings;
  settings.codec = "none";
  return settings;
}

std::optional<config::PolicySettings> sole_settings(const Manifest& manifest,
                                                    const config::CompressionPolicy& policy) {
  if (!is_compressible(manifest)) {
    return std::nullopt;
  }
  std::optional<config::PolicySettings> sole;
  for (const auto& [name, elements] : manifest.layers) {
    const config::PolicySettings own = config::resolve_policy(policy, name);
    if (own.codec != "none" && elements < own.dense_below) {
      continue;
    }
    const config::PolicySettings what = own.codec == "none" ? exact_settings() : measured(own);
    if (sole && *sole != what) {
      return std::nullopt;
    }
    sole = what;
  }
  return sole;
}

std::vector<config::PolicySettings> plan_candidates(const config::CompressionPolicy& policy,
                                                    const std::vector<std::string>& others) {
  std::vector<config::PolicySettings> candidates;
  const auto add = [&candidates](const config::PolicySettings& settings) {
    const config::PolicySettings what = measured(settings);
    if (settings.codec != "none" && candidates.size() < kMaxCandidates &&
        std::find(candidates.begin(), candidates.end(), what) == candidates.end()) {
      candidates.push_back(what);
    }
  };
  add(policy.defaults);
  for (const std::string& codec : others) {
    config::PolicySettings settings = policy.defaults;
    settings.codec = codec;
    add(settings);
  }
  for (const config::PolicyRule& rule : policy.rules) {
    add(settings_of(policy, rule));
  }
  return candidates;
}

planner::Workload plan_workload(const Manifest& manifest, const config::CompressionPolicy& policy,
                                const std::vector<config::PolicySettings>& candidates, uint32_t nodes) {
  std::map<uint32_t, uint64_t> coded;
  uint64_t exact = 0;
  for (const auto& [name, elements] : manifest.layers) {
    const config::PolicySettings settings = config::resolve_policy(policy, name);
    if (!is_compressible(manifest) || settings.codec == "none" || elements < settings.dense_below ||
        candidates.empty()) {
      exact += elements;
      continue;
    }
    const config::PolicySettings what = measured(settings);
    auto found = std::find(candidates.begin(), candidates.end(), what);
    if (found == candidates.end()) {  // beyond kMaxCandidates
      found = std::find_if(candidates.begin(), candidates.end(),
                           [&what](const auto& each) { return each.codec == what.codec; });
    }
    coded[found == candidates.end() ? 0 : static_cast<uint32_t>(found - candidates.begin())] += elements;
  }
  planner::Workload workload;
  workload.nodes = nodes;
  for (const auto& [candidate, elements] : coded) {
    workload.parts.push_back({candidate, elements});
  }
  if (exact > 0) {
    workload.parts.push_back({std::nullopt, exact});
  }
  return workload;
}

config::CompressionPolicy planned_policy(const config::CompressionPolicy& policy, const std::string& codec) {
  config::CompressionPolicy planned = policy;
  if (codec == "policy") {
    return planned;
  }
  const auto replace = [&codec](std::string& own) {
    if (own != "none") {
      own = codec;
    }
  };
  replace(planned.defaults.codec);
  for (config::PolicyRule& rule : planned.rules) {
    if (rule.set.codec) {
      replace(*rule.set.codec);
    }
  }
  return planned;
}

}  // namespace gradwire::control
