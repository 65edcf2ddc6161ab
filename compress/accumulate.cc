#include "compress/accumulate.h"

#include <algorithm>
#include <bit>

#include "compress/bytes.h"
#include "compress/hot.h"

namespace gradwire::compress {
namespace {

GRADWIRE_HOT void add_squares(const float* values, size_t count, double* partial) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (size_t j = 0; j < 16; ++j) {
      const double value = values[i + j];
      partial[j] += value * value;
    }
  }
  for (size_t j = 0; i < count; ++i, ++j) {
    const double value = values[i];
    partial[j] += value * value;
  }
}

}  // namespace

GRADWIRE_HOT void add(const float* a, const float* b, float* out, size_t count) {
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] + b[i];
  }
}

GRADWIRE_HOT void add_zero(const float* a, float* out, size_t count) {
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] + 0.0F;
  }
}

GRADWIRE_HOT void multiply(const float* a, float factor, float* out, size_t count) {
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] * factor;
  }
}

GRADWIRE_HOT void add_bytes(const std::byte* bytes, const float* a, float* out, size_t count) {
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    out[i] = load<float>(bytes + 4 * i) + a[i];
  }
}

void add_locals(std::span<const void* const> locals, uint64_t first, float* values, size_t count) {
  for (const void* local : locals) {
    add(values, static_cast<const float*>(local) + first, values, count);
  }
}

GRADWIRE_HOT uint32_t max_magnitude(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
  }
  return largest;
}

void SquareSum::add(const float* values, size_t count) {
  add_squares(values, count, partial_.data());
}

double SquareSum::total() const {
  double sum = 0;
  for (const double part : partial_) {
    sum += part;
  }
  return sum;
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
