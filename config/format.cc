#include "config/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "config/text.h"
#include "config/units.h"
#include "config/values.h"

namespace gradwire::config {
namespace {

std::string format_quantity(double value, std::span<const Unit> units) {
  const Unit* best = &units.front();
  for (const Unit& unit : units) {
    if (value != 0 && std::fmod(value, unit.factor) == 0) {
      best = &unit;
    }
  }
  if (value == 0 && units.data() == kTimeUnits) {
    return "0s";
  }
  return std::to_string(static_cast<uint64_t>(value / best->factor)) + std::string(best->name);
}

std::string format_number(double value) {
  char buffer[64];  // the limits of kNumber leave at most 30 digits
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  return error == std::errc() ? std::string(buffer, end) : "0";
}

std::string format_mode(uint32_t mode) {
  char buffer[16];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, mode, 8);
  return error == std::errc() ? std::string("0").append(buffer, end) : "0";
}

std::string format_limit(const Option& option, double value) {
  switch (option.type) {
    case Type::kSize:
      return format_quantity(value, kSizeUnits);
    case Type::kDuration:
    case Type::kSpin:
      return format_quantity(value, kTimeUnits);
    case Type::kMode:
      return format_mode(static_cast<uint32_t>(value));
    case Type::kNumber:
      return format_number(value);
    default:
      return std::to_string(static_cast<uint64_t>(value));
  }
}

}  // namespace

std::string yaml_scalar(std::string_view text) {
  const auto safe = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '-' || c == '+';
  };
  const bool plain = !text.empty() && text.front() != '-' && text.front() != '.' &&
                     std::ranges::all_of(text, safe) && text != "null" && text != "Null" && text != "NULL";
  if (plain) {
    return std::string(text);
  }
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  }
  return out + "\"";
}

std::string format_rule(const PolicyRule& rule) {
  std::string out = "{match: " + yaml_scalar(rule.match);
  for_each_policy_setting([&](std::string_view name, auto, auto override) {
    if (const auto& value = rule.set.*override) {
      using T = std::remove_cvref_t<decltype(*value)>;
      out += ", " + std::string(name) + ": ";
      if constexpr (std::is_same_v<T, std::string>) {
        out += yaml_scalar(*value);
      } else if constexpr (std::is_same_v<T, double>) {
        out += format_number(*value);
      } else {
        out += std::to_string(*value);
      }
    }
  });
  return out + "}";
}

std::string allowed_values(const Option& option) {
  std::string range = (option.or_zero ? format_limit(option, 0) + " or " : "") +
                      format_limit(option, option.min) + " to " + format_limit(option, option.max);
  switch (option.type) {
    case Type::kText:
      return range + " bytes of text";
    case Type::kCodecs:
      return "\"\" or of " + list_words({option.choices.begin(), option.choices.end()}) +
             ", separated by commas";
    case Type::kPath:
      return "an absolute path of at most " + format_limit(option, option.max) + " bytes" +
             (option.min == 0 ? " or \"\"" : "");
    case Type::kAddress:
      return "an IPv4 or IPv6 address";
    case Type::kChoice:
      return list_words({option.choices.begin(), option.choices.end()});
    case Type::kSpin:
      return "auto, off or " + range;
    case Type::kAutoCount:
      return "auto or " + range;
    case Type::kUcxMap:
      return "a map of at most " + std::to_string(kMaxUcxSettings) + " names to values";
    case Type::kRules:
      return "a list of at most " + format_limit(option, option.max) + " rules";
    default:
      return range;
  }
}

std::string format_value(const Option& option, const Config& config) {
  // The table has one accessor for reading and writing; nothing is written here.
  const Field field = option.field(const_cast<Config&>(config));
  return std::visit(
      [&](auto* target) -> std::string {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return *target;
        } else if constexpr (std::is_same_v<T, double>) {
          return format_number(*target);
        } else if constexpr (std::is_arithmetic_v<T>) {
          return option.type == Type::kCount ? std::to_string(*target)
                                             : format_limit(option, static_cast<double>(*target));
        } else if constexpr (std::is_same_v<T, Duration>) {
          return format_limit(option, static_cast<double>(target->count()));
        } else if constexpr (std::is_same_v<T, std::optional<Duration>>) {
          return !*target ? "auto"
                 : target->value().count()
                     ? format_limit(option, static_cast<double>(target->value().count()))
                     : "off";
        } else if constexpr (std::is_same_v<T, std::optional<uint32_t>>) {
          return *target ? std::to_string(**target) : "auto";
        } else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) {
          std::string out;
          for (const auto& [name, value] : *target) {
            out += (out.empty() ? "" : ", ") + yaml_scalar(name) + ": " + yaml_scalar(value);
          }
          return "{" + out + "}";
        } else {
          std::string out;
          for (const PolicyRule& rule : *target) {
            out += (out.empty() ? "" : ", ") + format_rule(rule);
          }
          return "[" + out + "]";
        }
      },
      field);
}

std::string format_yaml(const Option& option, const Config& config) {
  const bool structured = option.type == Type::kUcxMap || option.type == Type::kRules;
  return structured ? format_value(option, config) : yaml_scalar(format_value(option, config));
}

std::string default_value(const Option& option) {
  static const Config untouched;
  return option.default_note.empty() ? format_yaml(option, untouched) : std::string(option.default_note);
}

}  // namespace gradwire::config
