#include "compress/cpu/fused.h"

#include <algorithm>

#include "compress/cpu/reference.h"

namespace gradwire::compress::cpu {
namespace {

constexpr size_t kAddTile = 256;

}  // namespace

double BlockScan::squares() const {
  return plain::total(partials_.data());
}

void add_codes(const uint32_t* positions, const uint8_t* codes, size_t count, uint32_t scale, float* out) {
  alignas(64) std::array<float, kAddTile> values;
  for (size_t begin = 0; begin < count; begin += kAddTile) {
    const size_t tile = std::min(kAddTile, count - begin);
    kernels().l8_decode_scaled(codes + begin, tile, scale, 1.0F, values.data());
    for (size_t i = 0; i < tile; ++i) {
      float& element = out[positions[begin + i]];
      element = values[i] + element;
    }
  }
}

}  // namespace gradwire::compress::cpu
