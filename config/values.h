// Text to values, by an option's type and limits.
#pragma once

#include <string>
#include <string_view>

#include "config/options.h"

namespace gradwire::config {

inline constexpr size_t kMaxUcxSettings = 256;
inline constexpr size_t kMaxUcxValueBytes = 1023;

// Stores `text` in the option's field if it is a value of its type within its limits (not for kUcxMap and
// kRules). The failure's message is "'TEXT' what is wrong; allowed ...; write for example ...".
Status set_value(const Option& option, std::string_view text, Config& config);

// The same for a setting of a rule; `option` is one of the `compression` options except the rules.
Status set_override(const Option& option, std::string_view text, PolicyOverrides& overrides);

// Checks name (without UCX_) and value of a setting of UCX.
Status check_ucx_setting(std::string_view name, std::string_view value);

// Checks the pattern of a rule.
Status check_match(std::string_view match);

}  // namespace gradwire::config
