#include "compress/elias_fano.h"

#include <cstring>
#include <numbers>

#include "compress/bytes.h"
#include "compress/cpu/kernels.h"
#include "compress/words.h"

namespace gradwire::compress::elias_fano {

uint32_t low_bits(uint32_t elements, uint32_t count) {
  // Rounding a logarithm by halving: only exact operations and one division, the same everywhere.
  double ratio = std::numbers::ln2 * elements / count / std::numbers::sqrt2;
  uint32_t low = 0;
  while (low < kMaxLowBits && ratio >= 1.0) {
    ratio *= 0.5;
    ++low;
  }
  return low;
}

void write(std::span<const uint32_t> positions, uint32_t elements, uint32_t low, std::byte* out) {
  const auto count = static_cast<uint32_t>(positions.size());
  const size_t lows = low_bytes(count, low);
  const uint32_t mask = (1U << low) - 1;
  uint64_t pending = 0;
  uint32_t filled = 0;
  std::byte* next = out;
  for (const uint32_t position : positions) {
    pending |= static_cast<uint64_t>(position & mask) << filled;
    filled += low;
    if (filled >= 32) {
      store(next, static_cast<uint32_t>(pending));
      next += 4;
      pending >>= 32;
      filled -= 32;
    }
  }
  std::memcpy(next, &pending, (filled + 7) / 8);
  std::byte* const upper = out + lows;
  std::memset(upper, 0, bytes(elements, count, low) - lows);
  for (uint32_t i = 0; i < count; ++i) {
    set_bit(upper, size_t{positions[i] >> low} + i);
  }
}

bool read(const std::byte* from, uint32_t elements, uint32_t low, std::span<uint32_t> positions) {
  const auto count = static_cast<uint32_t>(positions.size());
  const size_t size = bytes(elements, count, low);
  const size_t lows = low_bytes(count, low);
  const std::byte* const upper = from + lows;
  const size_t upper_size = size - lows;
  if (!padding_is_zero(from, size_t{count} * low) ||
      !padding_is_zero(upper, upper_bits(elements, count, low))) {
    return false;
  }
  const cpu::Kernels& kernels = cpu::kernels();
  if (kernels.count_bits(upper, upper_size) != count) {
    return false;
  }
  kernels.set_bits(upper, upper_size, positions.data(), count);
  return kernels.join_lows(from, size, low, positions.data(), count) &&
         (count == 0 || positions.back() < elements);
}

}  // namespace gradwire::compress::elias_fano
