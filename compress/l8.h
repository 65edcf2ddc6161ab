// L8: a float as one byte, sign and base-2 logarithm in steps of 1/8 octave below a block's largest
// magnitude.
//
// Integer arithmetic only, so that every processor computes the same bytes. The scale of a block is the
// biased exponent of its largest magnitude. Code 0x00 is zero, 0x80 is "not finite" and decodes to NaN. Worst
// relative error 4.43%, rms 2.50%; the range is 14.75 to 15.75 octaves. The format is described in
// docs/wire-format.md.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace gradwire::compress::l8 {

// Rounding: added to a magnitude whose top four mantissa bits are the index, then the low 20 bits are
// dropped.
inline constexpr std::array<uint32_t, 16> kRound = {
    0x0a553c, 0x0c0000, 0x0e3c2c, 0x110acd, 0x140000, 0x12a7c1, 0x140000, 0x12f75c,
    0x140000, 0x11db73, 0x140000, 0x0c0000, 0x0f3321, 0x0c0000, 0x0ada82, 0x0c0000};
// Mantissas of 2^(j/8).
inline constexpr std::array<uint32_t, 8> kMantissa = {0x000000, 0x0b95c2, 0x1837f0, 0x25fed7,
                                                      0x3504f3, 0x45672a, 0x5744fd, 0x6ac0c7};

// The smallest mantissas that round up to j + 1 eighths of an octave: kRound seen from the other side.
inline constexpr std::array<uint32_t, 8> kRoundUpFrom = {0x05aac4, 0x11c3d4, 0x1ef533, 0x2d583f,
                                                         0x3d08a4, 0x4e248d, 0x60ccdf, 0x75257e};

inline constexpr uint32_t kInfinity = 0x7f800000;
inline constexpr uint32_t kMagnitude = 0x7fffffff;
inline constexpr uint32_t kNan = 0x7fc00000;
inline constexpr uint8_t kNotFinite = 0x80;
// The largest index of a finite value: 2^(7/8) * 2^127.
inline constexpr int32_t kMaxIndex = 2039;

constexpr uint32_t scale_of(uint32_t max_magnitude_bits) {
  return max_magnitude_bits >> 23;
}

// The largest code below the sign; smaller at the top of the range, so that nothing decodes to infinity.
constexpr int32_t code_limit(uint32_t scale) {
  return std::min<int32_t>(127, 2158 - 8 * static_cast<int32_t>(scale));
}

constexpr uint8_t encode(uint32_t bits, uint32_t scale) {
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= kInfinity) {
    return kNotFinite;
  }
  const uint32_t index = (magnitude + kRound[(magnitude >> 19) & 15]) >> 20;
  const int32_t code = static_cast<int32_t>(index) - 8 * static_cast<int32_t>(scale) + 119;
  if (code < 1) {
    return 0;
  }
  return static_cast<uint8_t>((bits >> 31 << 7) | static_cast<uint32_t>(std::min(code, code_limit(scale))));
}

// Any code with any scale decodes to something: indexes above the largest finite one count as that one.
constexpr uint32_t decode(uint8_t code, uint32_t scale) {
  const int32_t magnitude = code & 127;
  if (magnitude == 0) {
    return code == kNotFinite ? kNan : 0;
  }
  const int32_t index = std::min(magnitude - 119 + 8 * static_cast<int32_t>(scale), kMaxIndex);
  if (index < 8) {
    return 0;
  }
  const auto t = static_cast<uint32_t>(index);
  return ((t >> 3 << 23) + kMantissa[t & 7]) | (static_cast<uint32_t>(code & 128) << 24);
}

inline float decode_float(uint8_t code, uint32_t scale) {
  return std::bit_cast<float>(decode(code, scale));
}

// codes[i] = Q(values[i]); values[i] -= D(codes[i]). `scale` is no less than scale_of() of any value.
void encode_block(float* values, size_t count, uint32_t scale, uint8_t* codes);

// out[i] = D(codes[i]) + addend[i]; `out` may be `addend`.
void decode_add(const uint8_t* codes, size_t count, uint32_t scale, const float* addend, float* out);

// out[i] = D(codes[i]) * factor.
void decode_scaled(const uint8_t* codes, size_t count, uint32_t scale, float factor, float* out);

}  // namespace gradwire::compress::l8
