#include "compress/accumulate.h"

#include <array>

#include "compress/cpu/kernels.h"
#include "compress/cpu/reference.h"

namespace gradwire::compress {

void add(const float* a, const float* b, float* out, size_t count) {
  cpu::kernels().add(a, b, out, count);
}

void add_zero(const float* a, float* out, size_t count) {
  cpu::kernels().add_zero(a, out, count);
}

void multiply(const float* a, float factor, float* out, size_t count) {
  cpu::kernels().multiply(a, factor, out, count);
}

void add_bytes(const std::byte* bytes, const float* a, float* out, size_t count) {
  cpu::kernels().add_bytes(bytes, a, out, count);
}

void add_locals(std::span<const void* const> locals, uint64_t first, float* values, size_t count) {
  for (const void* local : locals) {
    add(values, static_cast<const float*>(local) + first, values, count);
  }
}

uint32_t max_magnitude(const float* values, size_t count) {
  return cpu::kernels().max_magnitude(values, count);
}

double square_sum(const float* values, size_t count) {
  std::array<double, cpu::kPartials> partial{};
  cpu::kernels().add_squares(values, count, partial.data());
  return cpu::plain::total(partial.data());
}

double magnitude_sum(const float* values, size_t count) {
  std::array<double, cpu::kPartials> partial{};
  cpu::kernels().add_magnitudes(values, count, partial.data());
  return cpu::plain::total(partial.data());
}

}  // namespace gradwire::compress
