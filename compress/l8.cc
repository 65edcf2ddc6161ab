#include "compress/l8.h"

#include "compress/cpu/kernels.h"

namespace gradwire::compress::l8 {

void encode_block(float* values, size_t count, uint32_t scale, uint8_t* codes) {
  cpu::kernels().l8_encode(values, count, scale, codes);
}

void decode_add(const uint8_t* codes, size_t count, uint32_t scale, const float* addend, float* out) {
  cpu::kernels().l8_decode_add(codes, count, scale, addend, out);
}

void decode_scaled(const uint8_t* codes, size_t count, uint32_t scale, float factor, float* out) {
  cpu::kernels().l8_decode_scaled(codes, count, scale, factor, out);
}

}  // namespace gradwire::compress::l8
