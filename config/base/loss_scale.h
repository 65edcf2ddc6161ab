// The loss scales that operations may have. What is kept at one scale is multiplied by the ratio of two as a
// float: over this range it is neither infinite nor 0.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace gradwire {

inline constexpr double kMinLossScale = 0x1p-60;
inline constexpr double kMaxLossScale = 0x1p60;
inline constexpr const char* kLossScaleRange = "from 2^-60 to 2^60 (8.7e-19 to 1.2e+18)";

// False for what is no number, too.
inline constexpr bool is_loss_scale(double scale) {
  return scale >= kMinLossScale && scale <= kMaxLossScale;
}

// "1e-45 is not from 2^-60 to 2^60 (8.7e-19 to 1.2e+18)".
inline std::string not_a_loss_scale(double scale) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.15g", scale);
  return std::string(text.data()) + " is not " + kLossScaleRange;
}

}  // namespace gradwire
