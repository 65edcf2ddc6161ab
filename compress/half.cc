#include "compress/half.h"

#include "compress/cpu/kernels.h"

namespace gradwire::compress {

void widen_fp16(const std::byte* from, float* out, size_t count) {
  cpu::kernels().widen_fp16(from, out, count);
}

void widen_bf16(const std::byte* from, float* out, size_t count) {
  cpu::kernels().widen_bf16(from, out, count);
}

void narrow_fp16(const float* values, float divisor, std::byte* out, size_t count) {
  cpu::kernels().narrow_fp16(values, divisor, out, count);
}

void narrow_bf16(const float* values, float divisor, std::byte* out, size_t count) {
  cpu::kernels().narrow_bf16(values, divisor, out, count);
}

void narrow_bf16_by_chance(const float* values, uint64_t key, std::byte* out, size_t count) {
  cpu::kernels().narrow_bf16_by_chance(values, key, out, count);
}

}  // namespace gradwire::compress
