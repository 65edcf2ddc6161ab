// 64 bits at a time from a byte string whose end need not be a whole word.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire::compress {

// The word that starts at byte `at`; bytes at or beyond `size` count as zero. at < size.
inline uint64_t load_word(const std::byte* from, size_t at, size_t size) {
  uint64_t word = 0;
  if (size - at >= sizeof word) {
    std::memcpy(&word, from + at, sizeof word);
  } else {
    std::memcpy(&word, from + at, size - at);
  }
  return word;
}

// Sets one bit of a zeroed byte string.
inline void set_bit(std::byte* bytes, size_t bit) {
  bytes[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
}

// Whether the bits from `used` to the end of the last byte are zero.
inline bool padding_is_zero(const std::byte* bytes, size_t used) {
  return used % 8 == 0 || (std::to_integer<unsigned>(bytes[used / 8]) >> (used % 8)) == 0;
}

}  // namespace gradwire::compress
