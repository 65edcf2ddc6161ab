#include "config/policy.h"

namespace gradwire::config {

bool glob_match(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;  // the last '*' seen, and where its match may begin to grow from
  size_t star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

PolicySettings resolve_policy(const CompressionPolicy& policy, std::string_view layer_name) {
  PolicySettings settings = policy.defaults;
  for (const PolicyRule& rule : policy.rules) {
    if (glob_match(rule.match, layer_name)) {
      for_each_policy_setting([&](std::string_view, auto setting, auto override) {
        if (const auto& value = rule.set.*override) {
          settings.*setting = *value;
        }
      });
      break;
    }
  }
  return settings;
}

}  // namespace gradwire::config
