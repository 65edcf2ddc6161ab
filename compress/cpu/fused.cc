#include "compress/cpu/fused.h"

#include <algorithm>

#include "compress/cpu/reference.h"

namespace gradwire::compress::cpu {
namespace {

constexpr size_t kExpandTile = 1024;  // codes; with their floats they stay in the first cache
constexpr size_t kAddTile = 256;

}  // namespace

double BlockScan::squares() const {
  return plain::total(partials_.data());
}

void add_codes(const uint32_t* positions, const uint8_t* codes, size_t count, uint32_t scale, uint32_t offset,
               float* out) {
  alignas(64) std::array<float, kAddTile> values;
  for (size_t begin = 0; begin < count; begin += kAddTile) {
    const size_t tile = std::min(kAddTile, count - begin);
    kernels().l8_decode_scaled(codes + begin, tile, scale, 1.0F, values.data());
    for (size_t i = 0; i < tile; ++i) {
      float& element = out[positions[begin + i] - offset];
      element = values[i] + element;
    }
  }
}

size_t decode_add_bitmap(const std::byte* bits, size_t begin, size_t count, const uint8_t* codes,
                         size_t available, uint32_t scale, const float* addend, float* out) {
  alignas(64) std::array<uint8_t, kExpandTile> dense;
  const Kernels& table = kernels();
  size_t used = 0;
  for (size_t at = 0; at < count; at += kExpandTile) {
    const size_t tile = std::min(kExpandTile, count - at);
    const std::byte* const tile_bits = bits + (begin + at) / 8;
    if (!table.expand(tile_bits, tile, codes + used, available - used, dense.data())) {
      return kTooFewCodes;
    }
    used += table.count_bits(tile_bits, tile / 8);
    for (size_t i = tile / 8 * 8; i < tile; ++i) {
      used += std::to_integer<unsigned>(tile_bits[i / 8]) >> (i % 8) & 1;
    }
    table.l8_decode_add(dense.data(), tile, scale, addend + at, out + at);
  }
  return used;
}

}  // namespace gradwire::compress::cpu
