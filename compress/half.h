// 16-bit floats: IEEE binary16 (fp16) and bfloat16. To fp32 exactly, from fp32 to the nearest, ties to even.
//
// Portable integer code, the same bits on every processor. A NaN stays a NaN: sign and upper payload are
// kept, and it is quiet afterwards. Beyond the largest value lies Inf; fp16 goes on below its smallest normal
// value with subnormal ones.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace gradwire::compress {

struct Float16 {
  static constexpr uint16_t kNan = 0x7e00;

  static float widen(uint16_t half) {
    const auto sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    const uint32_t normal = (magnitude << 13) + (uint32_t{112} << 23);
    // Below 2^-14 a magnitude is a multiple of 2^-24.
    const auto subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) *
                                                   5.9604644775390625e-08F);
    const uint32_t quiet = magnitude > 0x7c00 ? 0x00400000 : 0;
    const uint32_t special = 0x7f800000 | (magnitude << 13) | quiet;
    const uint32_t finite = magnitude < 0x0400 ? subnormal : normal;
    return std::bit_cast<float>(sign | (magnitude < 0x7c00 ? finite : special));
  }

  static uint16_t narrow(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - (uint32_t{112} << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // In [0.5, 1) fp32 has steps of 2^-24: the addition rounds.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000;
    const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const uint32_t special = magnitude > 0x7f800000 ? nan : 0x7c00;
    // 65520 lies midway between the largest value and what would be the next one.
    return static_cast<uint16_t>(sign | (magnitude < 0x477ff000 ? finite : special));
  }
};

struct Bfloat16 {
  static constexpr uint16_t kNan = 0x7fc0;

  static float widen(uint16_t half) {
    const uint32_t quiet = (half & 0x7fff) > 0x7f80 ? 0x00400000 : 0;
    return std::bit_cast<float>((static_cast<uint32_t>(half) << 16) | quiet);
  }

  static uint16_t narrow(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }

  // Of a finite value, to either neighbour, so that 16 random bits make the mean of the results the value.
  // What bf16 has is kept as it is, and nothing becomes larger than the largest finite value.
  static uint16_t narrow_by_chance(float value, uint32_t random) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = std::min((bits & 0x7fffffff) + random, 0x7f7fffffU);
    return static_cast<uint16_t>((bits >> 16 & 0x8000) | magnitude >> 16);
  }
};

// The n-th random word of a key: MurmurHash3's finalizer (Appleby), with more of the key half-way.
constexpr uint32_t random_word(uint64_t key, uint32_t n) {
  uint32_t x = n * 0x9e3779b9U + static_cast<uint32_t>(key);
  x = (x ^ x >> 16) * 0x85ebca6bU + static_cast<uint32_t>(key >> 32);
  x = (x ^ x >> 13) * 0xc2b2ae35U;
  return x ^ x >> 16;
}

// out[i] = the fp32 of the i-th of `count` 16-bit floats; each is read once.
void widen_fp16(const std::byte* from, float* out, size_t count);
void widen_bf16(const std::byte* from, float* out, size_t count);

// Writes 2 bytes an element at `out`: values[i] / divisor, rounded.
void narrow_fp16(const float* values, float divisor, std::byte* out, size_t count);
void narrow_bf16(const float* values, float divisor, std::byte* out, size_t count);
// The same undivided, rounded by chance: elements i and i + 16 of every 32 share a random word of the key.
void narrow_bf16_by_chance(const float* values, uint64_t key, std::byte* out, size_t count);

}  // namespace gradwire::compress
