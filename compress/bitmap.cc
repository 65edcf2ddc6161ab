#include "compress/bitmap.h"

#include <bit>
#include <cstring>

#include "compress/words.h"

namespace gradwire::compress::bitmap {

void write(std::span<const uint32_t> positions, uint32_t elements, std::byte* out) {
  std::memset(out, 0, bytes(elements));
  for (const uint32_t position : positions) {
    set_bit(out, position);
  }
}

bool read(const std::byte* from, uint32_t elements, std::span<uint32_t> positions) {
  const size_t size = bytes(elements);
  if (!padding_is_zero(from, elements)) {
    return false;
  }
  size_t set = 0;
  for (size_t at = 0; at < size; at += 8) {
    set += static_cast<size_t>(std::popcount(load_word(from, at, size)));
  }
  if (set != positions.size()) {
    return false;
  }
  uint32_t* next = positions.data();
  for (size_t at = 0; at < size; at += 8) {
    for (uint64_t word = load_word(from, at, size); word != 0; word &= word - 1) {
      *next++ = static_cast<uint32_t>(at * 8) + static_cast<uint32_t>(std::countr_zero(word));
    }
  }
  return true;
}

}  // namespace gradwire::compress::bitmap
