// Plain loops: what every instruction set must compute, and what is left of its last whole vector.
#pragma once

#include <bit>

#include "compress/cpu/kernels.h"

namespace gradwire::compress::cpu::plain {

inline uint32_t magnitude(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffff;
}

void add(const float* a, const float* b, float* out, size_t count);
void add_zero(const float* a, float* out, size_t count);
void multiply(const float* a, float factor, float* out, size_t count);
void add_bytes(const std::byte* bytes, const float* a, float* out, size_t count);
uint32_t max_magnitude(const float* values, size_t count);
void add_squares(const float* values, size_t count, double* partials);
void add_magnitudes(const float* values, size_t count, double* partials);

void l8_encode(float* values, size_t count, uint32_t scale, uint8_t* codes);
void l8_decode_add(const uint8_t* codes, size_t count, uint32_t scale, const float* addend, float* out);
void l8_decode_scaled(const uint8_t* codes, size_t count, uint32_t scale, float factor, float* out);
L8HopSums l8_hop(const L8Hop& hop);

uint32_t select(const float* values, uint32_t count, uint32_t threshold, uint32_t* positions);
uint32_t scan(const Scan& scan, double* partials, uint32_t* positions);

size_t count_bits(const std::byte* bits, size_t bytes);
void set_bits(const std::byte* bits, size_t bytes, uint32_t* out, size_t count);
bool join_lows(const std::byte* lows, size_t size, uint32_t low, uint32_t* positions, size_t count);

void widen_fp16(const std::byte* from, float* out, size_t count);
void widen_bf16(const std::byte* from, float* out, size_t count);
void narrow_fp16(const float* values, float divisor, std::byte* out, size_t count);
void narrow_bf16(const float* values, float divisor, std::byte* out, size_t count);
void narrow_bf16_by_chance(const float* values, uint64_t key, std::byte* out, size_t count);

// For the tails of vectorised loops. The sum of element `i` of a hop or a scan.
inline float local_sum(float value, std::span<const void* const> locals, uint64_t at) {
  for (const void* local : locals) {
    value = value + static_cast<const float*>(local)[at];
  }
  return value;
}
inline double total(const double* partials) {
  double sum = 0;
  for (size_t i = 0; i < kPartials; ++i) {
    sum += partials[i];
  }
  return sum;
}
// Elements from `begin` on.
void narrow_by_chance_from(const float* values, uint64_t key, std::byte* out, size_t begin, size_t count);
// Fields from `begin` on; position[begin - 1] is final.
bool join_lows_from(const std::byte* lows, size_t size, uint32_t low, uint32_t* positions, size_t begin,
                    size_t count);

}  // namespace gradwire::compress::cpu::plain
