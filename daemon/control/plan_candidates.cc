#include "daemon/control/plan_candidates.h"

#include <algorithm>
#include <map>

#include "compress/reducer.h"
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

// What a layer of so many elements is sent by, without what its costs do not depend on.
config::PolicySettings sent_by(config::PolicySettings settings, uint64_t elements) {
  settings.codec = compress::codec_of_layer(settings.codec, settings.dense_below, elements);
  if (settings.codec == "none") {
    return exact_settings();
  }
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
  std::vector<config::PolicySettings> usual, small;
  for (const auto& [name, elements] : manifest.layers) {
    const config::PolicySettings own = config::resolve_policy(policy, name);
    const config::PolicySettings sent = sent_by(own, elements);
    add_candidate(sent, &(sent.codec == own.codec ? usual : small));
  }
  const std::vector<config::PolicySettings>& all = usual.empty() ? small : usual;
  return all.size() == 1 ? std::optional(all.front()) : std::nullopt;
}

std::vector<config::PolicySettings> plan_candidates(const config::CompressionPolicy& policy,
                                                    const std::vector<std::string>& others) {
  std::vector<config::PolicySettings> own = {policy.defaults};
  for (const std::string& codec : others) {
    own.push_back(policy.defaults);
    own.back().codec = codec;
  }
  for (const config::PolicyRule& rule : policy.rules) {
    own.push_back(settings_of(policy, rule));
  }
  std::vector<config::PolicySettings> candidates;
  const auto add = [&candidates](const config::PolicySettings& sent) {
    if (sent.codec != "none") {
      add_candidate(sent, &candidates);
    }
  };
  for (const config::PolicySettings& settings : own) {
    add(sent_by(settings, UINT64_MAX));
  }
  for (const config::PolicySettings& settings : own) {
    add(sent_by(settings, 0));
  }
  return candidates;
}

void add_candidate(const config::PolicySettings& settings, std::vector<config::PolicySettings>* candidates) {
  if (candidates->size() < kMaxCandidates &&
      std::find(candidates->begin(), candidates->end(), settings) == candidates->end()) {
    candidates->push_back(settings);
  }
}

std::optional<uint32_t> place_of(const config::PolicySettings& settings,
                                 const std::vector<config::PolicySettings>& candidates) {
  auto found = std::find(candidates.begin(), candidates.end(), settings);
  if (found == candidates.end()) {
    found = std::find_if(candidates.begin(), candidates.end(),
                         [&settings](const auto& each) { return each.codec == settings.codec; });
  }
  return found == candidates.end() ? std::nullopt
                                   : std::optional(static_cast<uint32_t>(found - candidates.begin()));
}

planner::Workload plan_workload(const Manifest& manifest, const config::CompressionPolicy& policy,
                                const std::vector<config::PolicySettings>& candidates, uint32_t nodes) {
  std::map<uint32_t, uint64_t> coded;
  uint64_t exact = 0;
  for (const auto& [name, elements] : manifest.layers) {
    const config::PolicySettings sent = sent_by(config::resolve_policy(policy, name), elements);
    if (!is_compressible(manifest) || sent.codec == "none" || candidates.empty()) {
      exact += elements;
    } else {
      coded[place_of(sent, candidates).value_or(0)] += elements;
    }
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
