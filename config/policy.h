// Which codec with which settings a layer gets: an ordered list of rules over layer names.
//
// Plain values; nothing here is validated again (load_config and policy_from_json validate). Thread-safety:
// const access from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::config {

// What one layer gets. Meanings and ranges are those of the `compression` options (config/options.cc).
struct PolicySettings {
  std::string codec = "none";             // one of compress::codec_names()
  double density = 0.01;                  // target share of elements sent
  double edge_density_factor = 4.0;       // factor on density for the first and last large layer
  uint64_t dense_below = 2048;            // elements; smaller layers go dense
  double density_cap = 4.0;               // a block's density is at most density_cap * density
  uint32_t warm_start_steps = 100;        // committed operations per stage, or of all; 0 = no warm start
  std::string norm = "previous";          // previous, current
  std::string rounding = "nearest";       // nearest, stochastic
  std::string steps_per_octave = "8";     // 8, 16
  std::string error_feedback = "on";      // on, off
  std::string threshold_scope = "layer";  // layer, bucket
  std::string norm_of = "sum";            // sum, gradient
  std::string sparse_rows = "off";        // on, off
  double momentum = 0;                    // momentum correction; 0 = none
  double clip_norm = 0;                   // of the result, by layer; 0 = no clipping
  std::string warm_start = "stages";      // stages, exponential
  std::string residuals = "fp32";         // fp32, bf16
  bool operator==(const PolicySettings&) const = default;
};

// A rule's own settings; what it leaves open comes from CompressionPolicy::defaults.
struct PolicyOverrides {
  std::optional<std::string> codec;
  std::optional<double> density;
  std::optional<double> edge_density_factor;
  std::optional<uint64_t> dense_below;
  std::optional<double> density_cap;
  std::optional<uint32_t> warm_start_steps;
  std::optional<std::string> norm;
  std::optional<std::string> rounding;
  std::optional<std::string> steps_per_octave;
  std::optional<std::string> error_feedback;
  std::optional<std::string> threshold_scope;
  std::optional<std::string> norm_of;
  std::optional<std::string> sparse_rows;
  std::optional<double> momentum;
  std::optional<double> clip_norm;
  std::optional<std::string> warm_start;
  std::optional<std::string> residuals;
  bool operator==(const PolicyOverrides&) const = default;
};

struct PolicyRule {
  std::string match;  // the whole layer name; '*' any characters, '?' any one byte
  PolicyOverrides set;
  bool operator==(const PolicyRule&) const = default;
};

struct CompressionPolicy {
  PolicySettings defaults;
  std::vector<PolicyRule> rules;  // the first that matches wins
  bool operator==(const CompressionPolicy&) const = default;
};

inline constexpr size_t kMaxPolicyRules = 1024;
inline constexpr size_t kMaxMatchBytes = 256;

PolicySettings resolve_policy(const CompressionPolicy& policy, std::string_view layer_name);

// Whole-string match in O(pattern * name) at worst, without recursion.
bool glob_match(std::string_view pattern, std::string_view name);

// Calls visit(name, PolicySettings member, PolicyOverrides member) for every setting, in the order of the
// documentation.
template <typename Visit>
void for_each_policy_setting(Visit visit) {
  visit("codec", &PolicySettings::codec, &PolicyOverrides::codec);
  visit("density", &PolicySettings::density, &PolicyOverrides::density);
  visit("edge_density_factor", &PolicySettings::edge_density_factor, &PolicyOverrides::edge_density_factor);
  visit("dense_below", &PolicySettings::dense_below, &PolicyOverrides::dense_below);
  visit("density_cap", &PolicySettings::density_cap, &PolicyOverrides::density_cap);
  visit("warm_start_steps", &PolicySettings::warm_start_steps, &PolicyOverrides::warm_start_steps);
  visit("norm", &PolicySettings::norm, &PolicyOverrides::norm);
  visit("rounding", &PolicySettings::rounding, &PolicyOverrides::rounding);
  visit("steps_per_octave", &PolicySettings::steps_per_octave, &PolicyOverrides::steps_per_octave);
  visit("error_feedback", &PolicySettings::error_feedback, &PolicyOverrides::error_feedback);
  visit("threshold_scope", &PolicySettings::threshold_scope, &PolicyOverrides::threshold_scope);
  visit("norm_of", &PolicySettings::norm_of, &PolicyOverrides::norm_of);
  visit("sparse_rows", &PolicySettings::sparse_rows, &PolicyOverrides::sparse_rows);
  visit("momentum", &PolicySettings::momentum, &PolicyOverrides::momentum);
  visit("clip_norm", &PolicySettings::clip_norm, &PolicyOverrides::clip_norm);
  visit("warm_start", &PolicySettings::warm_start, &PolicyOverrides::warm_start);
  visit("residuals", &PolicySettings::residuals, &PolicyOverrides::residuals);
}

}  // namespace gradwire::config
