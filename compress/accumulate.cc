#include "compress/accumulate.h"

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

void SquareSum::add(const float* values, size_t count) {
  cpu::kernels().add_squares(values, count, partial_.data());
}

double SquareSum::total() const {
  return cpu::plain::total(partial_.data());
}

double square_sum(const float* values, size_t count) {
  if (count > 16) {
    SquareSum sum;
    sum.add(values, count);
    return sum.total();
  }
  double sum = 0;  // every partial would have one square: adding those of an incomplete row gives the same
  for (size_t i = 0; i < count; ++i) {
    const double value = values[i];
    sum += value * value;
  }
  return sum;
}

}  // namespace gradwire::compress
