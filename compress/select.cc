#include "compress/select.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "compress/cpu/kernels.h"
#include "compress/l8.h"

namespace gradwire::compress {
namespace {

inline uint32_t magnitude_of(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffff;
}

}  // namespace

uint32_t threshold_bits(double threshold) {
  if (!(threshold < static_cast<double>(std::bit_cast<float>(l8::kInfinity - 1)))) {
    return l8::kInfinity;
  }
  return std::max(std::bit_cast<uint32_t>(static_cast<float>(threshold)), 1U);
}

uint32_t select(const float* values, uint32_t count, uint32_t threshold, uint32_t* positions) {
  return cpu::kernels().select(values, count, threshold, positions);
}

uint32_t raised_threshold(const float* values, std::span<const uint32_t> positions, uint32_t cap,
                          uint32_t* scratch) {
  uint32_t largest = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    scratch[i] = magnitude_of(values[positions[i]]);
    largest = std::max(largest, scratch[i]);
  }
  // The (cap + 1)-th largest magnitude is the largest that must go.
  std::nth_element(scratch, scratch + cap, scratch + positions.size(), std::greater<>());
  return std::min({scratch[cap] + 1, largest, l8::kInfinity});
}

uint32_t select_again(const float* values, std::span<uint32_t> positions, uint32_t threshold) {
  uint32_t kept = 0;
  for (const uint32_t position : positions) {
    positions[kept] = position;
    kept += magnitude_of(values[position]) >= threshold ? 1 : 0;
  }
  return kept;
}

}  // namespace gradwire::compress
