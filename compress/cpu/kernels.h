// The table of leaf loops: one per instruction set, all with the same results to the bit.
//
// Sums have a fixed order and nothing is fused, so a table can be exchanged for another at any time. The one
// freedom: which NaN an operation on several NaNs gives. Pointers need no alignment; `out` may equal an input
// unless a comment says otherwise. Functions are pure but for their outputs, and reentrant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::compress::cpu {

// Sums of squares, or of magnitudes, by index mod 16.
inline constexpr size_t kPartials = 16;

// A hop over one block of at most kFusedBlock elements: S = ((D(arrived) + residual) + g1) + ...
inline constexpr size_t kFusedBlock = 4096;
struct L8Hop {
  const uint8_t* arrived = nullptr;  // null at the first hop
  uint32_t arrived_scale = 0;
  const float* residual = nullptr;
  std::span<const void* const> locals;  // fp32 gradients of the bucket, in rank order
  uint64_t first = 0;                   // of the block, within the bucket
  size_t count = 0;
  uint8_t* codes = nullptr;  // Q(S); not `arrived`
  float* next = nullptr;     // S - D(Q(S)); may be `residual`
};
struct L8HopSums {
  uint32_t largest = 0;  // magnitude bits of S; its exponent is the scale
  double rest = 0;       // squares of S - D(Q(S))
};

// sum = (base + g1) + ..., its squares, and which elements reach a threshold.
struct Scan {
  const float* base = nullptr;
  std::span<const void* const> locals;
  uint64_t first = 0;  // of base, within the bucket
  uint32_t count = 0;
  float* sum = nullptr;    // may be `base`
  uint32_t threshold = 0;  // magnitude bits, 1 to infinity's
  uint32_t position = 0;   // of base, within the block: added to what is written
};

struct Kernels {
  const char* name;

  // compress/accumulate.h
  void (*add)(const float* a, const float* b, float* out, size_t count);
  void (*add_zero)(const float* a, float* out, size_t count);
  void (*multiply)(const float* a, float factor, float* out, size_t count);
  void (*add_bytes)(const std::byte* bytes, const float* a, float* out, size_t count);
  uint32_t (*max_magnitude)(const float* values, size_t count);
  void (*add_squares)(const float* values, size_t count, double* partials);
  void (*add_magnitudes)(const float* values, size_t count, double* partials);

  // compress/l8.h
  void (*l8_encode)(float* values, size_t count, uint32_t scale, uint8_t* codes);
  void (*l8_decode_add)(const uint8_t* codes, size_t count, uint32_t scale, const float* addend, float* out);
  void (*l8_decode_scaled)(const uint8_t* codes, size_t count, uint32_t scale, float factor, float* out);
  L8HopSums (*l8_hop)(const L8Hop& hop);

  // compress/select.h. `positions` has room for as many words as there are elements.
  uint32_t (*select)(const float* values, uint32_t count, uint32_t threshold, uint32_t* positions);
  uint32_t (*scan)(const Scan& scan, double* partials, uint32_t* positions);

  size_t (*count_bits)(const std::byte* bits, size_t bytes);
  // The numbers of the set bits of `bytes` bytes, increasing; `out` has room for exactly those.
  void (*set_bits)(const std::byte* bits, size_t bytes, uint32_t* out, size_t count);
  // positions[i] = (positions[i] - i) << low | the i-th of the low-bit fields in `lows`, a string of `size`
  // bytes; low is 0 to 15. Whether the results increase strictly.
  bool (*join_lows)(const std::byte* lows, size_t size, uint32_t low, uint32_t* positions, size_t count);

  // compress/half.h
  void (*widen_fp16)(const std::byte* from, float* out, size_t count);
  void (*widen_bf16)(const std::byte* from, float* out, size_t count);
  void (*narrow_fp16)(const float* values, float divisor, std::byte* out, size_t count);
  void (*narrow_bf16)(const float* values, float divisor, std::byte* out, size_t count);
  void (*narrow_bf16_by_chance)(const float* values, uint64_t key, std::byte* out, size_t count);
};

// The fastest that this processor runs; chosen at the first call. Thread-safe.
const Kernels& kernels();

// All that this processor runs, fastest first; the last is the plain code that the others are tested against.
std::span<const Kernels* const> offered();
const Kernels& reference();

}  // namespace gradwire::compress::cpu
