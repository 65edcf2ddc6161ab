// Values of options as text, for the dump, the documentation and error messages.
#pragma once

#include <string>
#include <string_view>

#include "config/options.h"

namespace gradwire::config {

// The option's value as text that set_value accepts; kUcxMap and kRules in YAML's flow style.
std::string format_value(const Option& option, const Config& config);

// The same in YAML: in quotes where YAML needs them.
std::string format_yaml(const Option& option, const Config& config);

// One rule in YAML's flow style.
std::string format_rule(const PolicyRule& rule);

// A scalar for YAML: as it is where that is safe, else in double quotes.
std::string yaml_scalar(std::string_view text);

// "100ms to 10min", "none, l8, lads or laco".
std::string allowed_values(const Option& option);

// What the option has in a Config nobody touched, or the rule by which load_config computes it.
std::string default_value(const Option& option);

}  // namespace gradwire::config
