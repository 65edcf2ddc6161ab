#include "compress/elias_fano.h"

#include <bit>
#include <cstring>
#include <numbers>

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
    for (; filled >= 8; filled -= 8, pending >>= 8) {
      *next++ = static_cast<std::byte>(pending & 0xff);
    }
  }
  if (filled > 0) {
    *next = static_cast<std::byte>(pending & 0xff);
  }
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
  size_t set = 0;
  for (size_t at = 0; at < upper_size; at += 8) {
    set += static_cast<size_t>(std::popcount(load_word(upper, at, upper_size)));
  }
  if (set != count) {
    return false;
  }
  const uint32_t mask = (1U << low) - 1;
  uint32_t i = 0;
  int64_t previous = -1;
  bool increasing = true;
  for (size_t at = 0; at < upper_size; at += 8) {
    for (uint64_t word = load_word(upper, at, upper_size); word != 0; word &= word - 1, ++i) {
      const uint32_t bit = static_cast<uint32_t>(at * 8) + static_cast<uint32_t>(std::countr_zero(word));
      const size_t low_at = size_t{i} * low;
      const auto remainder = static_cast<uint32_t>(load_word(from, low_at / 8, size) >> (low_at % 8)) & mask;
      const uint32_t position = ((bit - i) << low) | remainder;
      increasing &= static_cast<int64_t>(position) > previous;
      previous = position;
      positions[i] = position;
    }
  }
  return increasing && previous < static_cast<int64_t>(elements);
}

}  // namespace gradwire::compress::elias_fano
