#include "config/policy_json.h"

#include <nlohmann/json.hpp>

#include "config/format.h"
#include "config/text.h"
#include "config/values.h"

namespace gradwire::config {
namespace {

using nlohmann::json;

Status corrupt(const std::string& what) {
  return {Code::kCorrupt, "the job's compression policy: " + what + "; do all nodes run the same version?"};
}

// The text which set_value would have seen in a file.
Result<std::string> value_text(const Option& option, const json& value) {
  const bool wants_text = option.type == Type::kChoice;
  if (wants_text && value.is_string()) {
    return value.get_ref<const std::string&>();
  }
  if (!wants_text && (value.is_number_unsigned() || (option.type == Type::kNumber && value.is_number()))) {
    return value.dump();
  }
  return corrupt(std::string(option.leaf()) + " has the wrong type");
}

Result<PolicyOverrides> read_settings(const json& object, std::string_view besides) {
  PolicyOverrides settings;
  if (!object.is_object()) {
    return corrupt("settings are not an object");
  }
  for (const auto& [name, value] : object.items()) {
    if (name == besides) {
      continue;
    }
    const Option* option = find_option("compression." + name);
    if (option == nullptr || option->type == Type::kRules) {
      return corrupt("unknown setting " + in_quotes(name));
    }
    const Result<std::string> text = value_text(*option, value);
    GRADWIRE_RETURN_IF_ERROR(text.status());
    if (const Status status = set_override(*option, *text, settings); !status.ok()) {
      return corrupt(name + ": " + status.message());
    }
  }
  return settings;
}

Result<PolicyRule> read_rule(const json& object) {
  Result<PolicyOverrides> settings = read_settings(object, "match");
  GRADWIRE_RETURN_IF_ERROR(settings.status());
  const auto match = object.find("match");
  if (match == object.end() || !match->is_string()) {
    return corrupt("a rule has no match");
  }
  PolicyRule rule{match->get<std::string>(), *settings};
  if (const Status status = check_match(rule.match); !status.ok()) {
    return corrupt(status.message());
  }
  return rule;
}

Result<CompressionPolicy> read_policy(const json& document) {
  if (!document.is_object() || document.value("version", json()) != kPolicyVersion) {
    return corrupt("not a document of version 1");
  }
  for (const auto& [name, value] : document.items()) {
    if (name != "version" && name != "defaults" && name != "rules") {
      return corrupt("unknown key " + in_quotes(name));
    }
  }
  const auto defaults = document.find("defaults");
  const auto rules = document.find("rules");
  if (defaults == document.end() || rules == document.end() || !rules->is_array() ||
      rules->size() > kMaxPolicyRules) {
    return corrupt("defaults or rules are missing, or there are more than 1024 rules");
  }
  CompressionPolicy policy;
  const Result<PolicyOverrides> settings = read_settings(*defaults, "");
  GRADWIRE_RETURN_IF_ERROR(settings.status());
  std::string missing;
  for_each_policy_setting([&](std::string_view name, auto setting, auto override) {
    if (const auto& value = (*settings).*override) {
      policy.defaults.*setting = *value;
    } else {
      missing = name;
    }
  });
  if (!missing.empty()) {
    return corrupt("the defaults lack " + missing);
  }
  for (const json& item : *rules) {
    Result<PolicyRule> rule = read_rule(item);
    GRADWIRE_RETURN_IF_ERROR(rule.status());
    policy.rules.push_back(std::move(*rule));
  }
  return policy;
}

}  // namespace

json policy_to_json(const CompressionPolicy& policy) {
  json defaults = json::object();
  json rules = json::array();
  for_each_policy_setting([&](std::string_view name, auto setting, auto) {
    defaults[std::string(name)] = policy.defaults.*setting;
  });
  for (const PolicyRule& rule : policy.rules) {
    json object = {{"match", rule.match}};
    for_each_policy_setting([&](std::string_view name, auto, auto override) {
      if (const auto& value = rule.set.*override) {
        object[std::string(name)] = *value;
      }
    });
    rules.push_back(std::move(object));
  }
  return {{"version", kPolicyVersion}, {"defaults", std::move(defaults)}, {"rules", std::move(rules)}};
}

Result<CompressionPolicy> policy_from_json(const json& document) {
  try {
    return read_policy(document);
  } catch (const std::exception& error) {  // nlohmann throws on a misuse that the checks above do not foresee
    return corrupt(error.what());
  }
}

}  // namespace gradwire::config
