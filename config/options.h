// The one table of options. Parsing, limits, dump and documentation are read off its rows.
#pragma once

#include <span>
#include <string_view>
#include <variant>

#include "config/config.h"

namespace gradwire::config {

enum class Type {
  kText,       // limits: length in bytes
  kPath,       // absolute; empty where min is 0
  kCodecs,     // names of codecs, separated by commas; limits: length in bytes
  kAddress,    // IPv4 or IPv6 in digits
  kChoice,     // one of `choices`
  kMode,       // octal permissions; the owner can read and write
  kCount,      // whole number
  kSize,       // limits: bytes
  kNumber,     // decimal fraction
  kDuration,   // limits: microseconds
  kSpin,       // auto, off or a duration
  kAutoCount,  // auto or a whole number
  kUcxMap,     // names and values of UCX settings
  kRules,      // list of compression rules
};

using Field =
    std::variant<std::string*, uint16_t*, uint32_t*, uint64_t*, double*, Duration*, std::optional<Duration>*,
                 std::optional<uint32_t>*, std::map<std::string, std::string>*, std::vector<PolicyRule>*>;

struct Option {
  std::string_view name;  // SECTION.LEAF
  Type type;
  double min;  // in the unit of the type
  double max;
  std::span<const std::string_view> choices;
  std::string_view example;       // a value that is fine, for error messages
  std::string_view default_note;  // where load_config computes the default; else empty
  std::string_view doc;
  Field (*field)(Config&);
  bool or_zero = false;  // 0 is allowed besides

  std::string_view section() const { return name.substr(0, name.find('.')); }
  std::string_view leaf() const { return name.substr(name.find('.') + 1); }
};

struct Section {
  std::string_view name;
  std::string_view doc;
};

std::span<const Option> options();
std::span<const Section> sections();
const Option* find_option(std::string_view name);

}  // namespace gradwire::config
