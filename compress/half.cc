#include "compress/half.h"

#include "compress/bytes.h"
#include "compress/hot.h"

namespace gradwire::compress {

GRADWIRE_HOT
void widen_fp16(const std::byte* from, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Float16::widen(load<uint16_t>(from + 2 * i));
  }
}

GRADWIRE_HOT
void widen_bf16(const std::byte* from, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Bfloat16::widen(load<uint16_t>(from + 2 * i));
  }
}

GRADWIRE_HOT
void narrow_fp16(const float* values, float divisor, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    store(out + 2 * i, Float16::narrow(values[i] / divisor));
  }
}

GRADWIRE_HOT
void narrow_bf16(const float* values, float divisor, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    store(out + 2 * i, Bfloat16::narrow(values[i] / divisor));
  }
}

}  // namespace gradwire::compress
