// Leaf loops over floats that every block codec shares. Outputs may be their inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::compress {

// out = a + b
void add(const float* a, const float* b, float* out, size_t count);
// out = a + 0: what an element that was not sent contributes (a zero without sign).
void add_zero(const float* a, float* out, size_t count);
// out = a * factor
void multiply(const float* a, float factor, float* out, size_t count);
// out = D(bytes) + a, where the bytes are raw fp32 at any alignment
void add_bytes(const std::byte* bytes, const float* a, float* out, size_t count);
// values += the local ranks' gradients from element `first` on, in rank order.
void add_locals(std::span<const void* const> locals, uint64_t first, float* values, size_t count);

// The largest value of bits & 0x7fffffff; 0 for no elements.
uint32_t max_magnitude(const float* values, size_t count);

// The sum of squares in 16 fp64 partials by index mod 16, added in index order: the same for every
// instruction set. A sum over finite fp32 values is finite, so it also tells whether all were.
double square_sum(const float* values, size_t count);
// The same of their magnitudes.
double magnitude_sum(const float* values, size_t count);

}  // namespace gradwire::compress
