// Magnitudes of a block, for the codecs that send signs and for calibration.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gradwire::compress {

inline constexpr uint32_t kMostVoters = 255;  // of a tally: its counts are bytes in memory

// In 16 fp64 partials by index mod 16: the same on every machine.
inline double magnitude_sum(const float* values, size_t n) {
  std::array<double, 16> partial{};
  for (size_t i = 0; i < n; ++i) {
    partial[i % 16] += std::abs(static_cast<double>(values[i]));
  }
  double sum = 0;
  for (const double part : partial) {
    sum += part;
  }
  return sum;
}

// 0 where hardly anything is there.
inline float mean_magnitude(const float* values, size_t n) {
  return static_cast<float>(magnitude_sum(values, n) / static_cast<double>(n));
}

}  // namespace gradwire::compress
