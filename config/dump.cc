#include "config/apply.h"
#include "config/config.h"
#include "config/format.h"

namespace gradwire::config {
namespace {

std::string comment(const Option& option, const Config& config, const Source& source) {
  if (source.kind == Source::Kind::kDefault) {
    return "  # default";
  }
  const std::string standard = default_value(option);
  std::string text = "  # ";
  if (standard != format_yaml(option, config)) {
    text.append("default ").append(standard).append("; ");
  }
  return text.append("from ").append(shown_path(source.text));
}

}  // namespace

std::string dump_config(const LoadedConfig& loaded) {
  std::string out = "# Beside each value: its default where that differs, and where the value comes from.\n";
  for (const Section& section : sections()) {
    out.append("\n").append(section.name).append(":\n");
    for (const Option& option : options()) {
      if (option.section() != section.name) {
        continue;
      }
      const auto source = loaded.sources.find(option.name);
      const std::string note =
          comment(option, loaded.config, source == loaded.sources.end() ? Source() : source->second) + "\n";
      const std::vector<PolicyRule>& rules = loaded.config.compression.rules;
      if (option.type == Type::kRules && !rules.empty()) {
        out += "  " + std::string(option.leaf()) + ":" + note;
        for (const PolicyRule& rule : rules) {
          out += "    - " + format_rule(rule) + "\n";
        }
      } else {
        out += "  " + std::string(option.leaf()) + ": " + format_yaml(option, loaded.config) + note;
      }
    }
  }
  return out;
}

}  // namespace gradwire::config
