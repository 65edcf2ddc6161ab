// Of the codecs that send signs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/accumulate.h"

namespace gradwire::compress {

inline constexpr uint32_t kMostVoters = 255;  // of a tally: its counts are bytes in memory

// 0 where hardly anything is there.
inline float mean_magnitude(const float* values, size_t n) {
  return static_cast<float>(magnitude_sum(values, n) / static_cast<double>(n));
}

}  // namespace gradwire::compress
