#include "config/values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "config/base/one_line.h"
#include "config/base/similar.h"
#include "config/format.h"
#include "config/text.h"
#include "config/units.h"

namespace gradwire::config {
namespace {

std::string unit_names(std::span<const Unit> units) {
  std::vector<std::string_view> names;
  for (const Unit& unit : units) {
    names.push_back(unit.name);
  }
  return list_words(names);
}

Status wrong(std::string what) {
  return {Code::kInvalidArgument, std::move(what)};
}

template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// "1.5MiB" in the smallest unit. A number alone is taken where `bare` permits it.
Result<double> parse_quantity(std::string_view text, std::span<const Unit> units, bool bare) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto number = parse_whole<double>(text.substr(0, digits));
  if (!number) {
    return wrong("is not a number with a unit");
  }
  const std::string_view name = text.substr(digits);
  if (name.empty() && !bare) {
    return wrong("has no unit (" + unit_names(units) + ")");
  }
  const auto unit = name.empty() ? units.begin() : std::ranges::find(units, name, &Unit::name);
  if (unit == units.end()) {
    return wrong("has the unknown unit " + in_quotes(name) + " (" + unit_names(units) + ")");
  }
  const double value = *number * unit->factor;
  if (std::abs(value - std::round(value)) > 1e-3) {
    return wrong("is not a whole number of " + std::string(units.front().name));
  }
  return std::round(value);
}

Result<std::string> parse_text(const Option& option, std::string_view text) {
  if (find_control(text)) {
    return wrong("holds a control character or is not UTF-8");
  }
  if (option.type == Type::kChoice) {
    if (std::ranges::find(option.choices, text) == option.choices.end()) {
      const auto near = nearest(text, option.choices);
      return wrong("is not known" + (near ? ", did you mean '" + std::string(*near) + "'?" : std::string()));
    }
    return std::string(text);
  }
  if (option.type == Type::kCodecs) {
    for (size_t at = 0; !text.empty() && at <= text.size();) {
      const std::string_view name = text.substr(at, text.find(',', at) - at);
      if (name.empty()) {
        return wrong("has a comma without a codec before or behind it");
      }
      if (name == "none") {
        return wrong("holds 'none': whether buckets go exactly is plan.bypass's");
      }
      if (name == "sign") {
        return wrong(
            "holds 'sign', which counts votes and stands in for no other codec: ask for it in "
            "compression.codec");
      }
      if (std::ranges::find(option.choices, name) == option.choices.end()) {
        return wrong("holds '" + std::string(name) + "', which is no codec");
      }
      at += name.size() + 1;
    }
  }
  if (option.type == Type::kAddress) {
    unsigned char address[16];
    const std::string copy(text);
    if (inet_pton(AF_INET, copy.c_str(), address) != 1 && inet_pton(AF_INET6, copy.c_str(), address) != 1) {
      return wrong("is not an IPv4 or IPv6 address");
    }
    return copy;
  }
  if (text.empty() && option.min > 0) {
    return wrong("is empty");
  }
  if (static_cast<double>(text.size()) > option.max) {
    return wrong("is " + std::to_string(text.size()) + " bytes long");
  }
  if (option.type == Type::kPath && !text.empty() && !text.starts_with('/')) {
    return wrong("is not an absolute path");
  }
  return std::string(text);
}

// "010" is 10 to one reader and 8 to another, YAML's own rules among them.
bool looks_octal(std::string_view text) {
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

// A value of any numeric type in the unit of the option's limits.
Result<double> parse_number(const Option& option, std::string_view text) {
  if (option.type != Type::kMode && looks_octal(text)) {
    return wrong("starts with 0, which YAML takes for an octal number: write it without");
  }
  switch (option.type) {
    case Type::kSize:
      return parse_quantity(text, kSizeUnits, true);
    case Type::kDuration:
    case Type::kSpin:
      return parse_quantity(text, kTimeUnits, false);
    case Type::kNumber: {
      const auto value = parse_whole<double>(text);
      return value && std::isfinite(*value) ? Result<double>(*value) : wrong("is not a number");
    }
    case Type::kMode: {
      uint32_t mode = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
      if (error != std::errc() || end != text.data() + text.size()) {
        return wrong("is not an octal number");
      }
      return (mode & 0600U) == 0600U ? Result<double>(mode) : wrong("locks out the owner");
    }
    default: {
      const auto value = parse_whole<uint64_t>(text);
      return value ? Result<double>(static_cast<double>(*value)) : wrong("is not a whole number");
    }
  }
}

Status set_checked(const Option& option, std::string_view text, Config& config) {
  const Field field = option.field(config);
  if (auto* const* target = std::get_if<std::string*>(&field)) {
    Result<std::string> value = parse_text(option, text);
    GRADWIRE_RETURN_IF_ERROR(value.status());
    **target = *value;
    return ok_status();
  }
  if (auto* const* target = std::get_if<std::optional<Duration>*>(&field);
      target != nullptr && (text == "auto" || text == "off")) {
    **target = text == "off" ? std::optional(Duration(0)) : std::nullopt;
    return ok_status();
  }
  if (auto* const* target = std::get_if<std::optional<uint32_t>*>(&field);
      target != nullptr && text == "auto") {
    **target = std::nullopt;
    return ok_status();
  }
  const Result<double> parsed = parse_number(option, text);
  GRADWIRE_RETURN_IF_ERROR(parsed.status());
  const double value = *parsed;
  if ((value < option.min || value > option.max) && !(option.or_zero && value == 0)) {
    return wrong(value < option.min ? "is too small" : "is too large");
  }
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_arithmetic_v<T>) {
          *target = static_cast<T>(value);
        } else if constexpr (std::is_same_v<T, Duration> || std::is_same_v<T, std::optional<Duration>>) {
          *target = Duration(static_cast<int64_t>(value));
        } else if constexpr (std::is_same_v<T, std::optional<uint32_t>>) {
          *target = static_cast<uint32_t>(value);
        }
      },
      field);
  return ok_status();
}

}  // namespace

Status set_value(const Option& option, std::string_view text, Config& config) {
  Status status = set_checked(option, text, config);
  if (status.ok()) {
    return status;
  }
  return wrong(in_quotes(text) + " " + status.message() + "; allowed " + allowed_values(option) +
               "; write for example " + std::string(option.example));
}

Status set_override(const Option& option, std::string_view text, PolicyOverrides& overrides) {
  Config scratch;
  GRADWIRE_RETURN_IF_ERROR(set_value(option, text, scratch));
  for_each_policy_setting([&](std::string_view name, auto setting, auto override) {
    if (name == option.leaf()) {
      overrides.*override = scratch.compression.defaults.*setting;
    }
  });
  return ok_status();
}

Status check_ucx_setting(std::string_view name, std::string_view value) {
  const auto allowed = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  if (name.starts_with("UCX_")) {
    return wrong("the name " + in_quotes(name) + " has the prefix UCX_; write " + in_quotes(name.substr(4)));
  }
  if (name.empty() || name.size() > 128 || !std::ranges::all_of(name, allowed)) {
    return wrong(in_quotes(name) +
                 " is not the name of a UCX setting; allowed are 1 to 128 of A-Z, 0-9 and _; write for "
                 "example TCP_CM_REUSEADDR");
  }
  if (name == "TLS" || name == "NET_DEVICES") {
    return wrong(in_quotes(name) + " has its own option; use transport." +
                 (name == "TLS" ? "tls" : "devices"));
  }
  if (value.size() > kMaxUcxValueBytes || find_control(value)) {
    return wrong("the value of " + std::string(name) +
                 " is not UTF-8 text without control characters of at most " +
                 std::to_string(kMaxUcxValueBytes) + " bytes; shorten or correct it");
  }
  return ok_status();
}

Status check_match(std::string_view match) {
  if (match.empty() || match.size() > kMaxMatchBytes || find_control(match)) {
    return wrong(in_quotes(match) + " is not a pattern of layer names; allowed are 1 to " +
                 std::to_string(kMaxMatchBytes) + " bytes of UTF-8 text; write for example \"*.bias\"");
  }
  return ok_status();
}

}  // namespace gradwire::config
