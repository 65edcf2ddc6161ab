#include "compress/bitmap.h"

#include <cstring>

#include "compress/cpu/kernels.h"
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
  const cpu::Kernels& kernels = cpu::kernels();
  if (kernels.count_bits(from, size) != positions.size()) {
    return false;
  }
  kernels.set_bits(from, size, positions.data(), positions.size());
  return true;
}

}  // namespace gradwire::compress::bitmap
