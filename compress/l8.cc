#include "compress/l8.h"

#include "compress/hot.h"

namespace gradwire::compress::l8 {
namespace {

// The smallest mantissas that round up to j + 1 eighths of an octave: kRound seen from the other side. A
// chain of comparisons vectorises everywhere, a table look-up only where gathers are fast.
constexpr std::array<uint32_t, 8> kThreshold = {0x05aac4, 0x11c3d4, 0x1ef533, 0x2d583f,
                                                0x3d08a4, 0x4e248d, 0x60ccdf, 0x75257e};

constexpr size_t kTableFrom = 256;  // fewer elements do not repay the table of all codes

// Scales for which a block needs no care for codes that decode to zero, values near the largest finite one,
// or Inf and NaN.
constexpr uint32_t kPlainFrom = 16;
constexpr uint32_t kPlainTo = 253;
constexpr size_t kVectorFrom = 16;

// All ones where a >= b (both below 2^31), for branch-free selection.
inline uint32_t at_least(uint32_t a, uint32_t b) {
  return -static_cast<uint32_t>(static_cast<int32_t>(a) >= static_cast<int32_t>(b));
}

// One step of the chain: walks the decoded mantissa along and counts the eighths in the upper byte.
template <size_t J>
inline uint32_t round_step(uint32_t mantissa) {
  constexpr uint32_t next = J == 7 ? 0x800000 : kMantissa[(J + 1) % 8];
  constexpr uint32_t step = (next - kMantissa[J]) | (1U << 24);
  return at_least(mantissa, kThreshold[J]) & step;
}

GRADWIRE_HOT void encode_plain(float* values, size_t count, uint32_t scale, uint8_t* codes) {
  const uint32_t offset = 119 - 8 * scale;
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i];
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t mantissa = bits & 0x7fffff;
    const uint32_t rounded = round_step<0>(mantissa) + round_step<1>(mantissa) + round_step<2>(mantissa) +
                             round_step<3>(mantissa) + round_step<4>(mantissa) + round_step<5>(mantissa) +
                             round_step<6>(mantissa) + round_step<7>(mantissa);
    const uint32_t code = (magnitude >> 23 << 3) + (rounded >> 24) + offset;
    const uint32_t decoded = (magnitude & kInfinity) + (rounded & 0xffffff);
    const uint32_t sent = at_least(code, 1);
    codes[i] = static_cast<uint8_t>(sent & ((bits >> 24 & 0x80) | code));
    values[i] = value - std::bit_cast<float>(sent & (decoded | (bits & 0x80000000)));
  }
}

class DecodeTable {
 public:
  DecodeTable(uint32_t scale, float factor) {
    for (uint32_t code = 0; code < 256; ++code) {
      values_[code] = decode_float(static_cast<uint8_t>(code), scale) * factor;
    }
  }
  float operator[](uint8_t code) const { return values_[code]; }

 private:
  std::array<float, 256> values_;
};

}  // namespace

void encode_block(float* values, size_t count, uint32_t scale, uint8_t* codes) {
  if (count >= kVectorFrom && scale >= kPlainFrom && scale <= kPlainTo) {
    encode_plain(values, count, scale, codes);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    codes[i] = encode(std::bit_cast<uint32_t>(values[i]), scale);
    values[i] -= decode_float(codes[i], scale);
  }
}

void decode_add(const uint8_t* codes, size_t count, uint32_t scale, const float* addend, float* out) {
  if (count < kTableFrom) {
    for (size_t i = 0; i < count; ++i) {
      out[i] = decode_float(codes[i], scale) + addend[i];
    }
    return;
  }
  const DecodeTable table(scale, 1.0F);
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    out[i] = table[codes[i]] + addend[i];
  }
}

void decode_scaled(const uint8_t* codes, size_t count, uint32_t scale, float factor, float* out) {
  if (count < kTableFrom) {
    for (size_t i = 0; i < count; ++i) {
      out[i] = decode_float(codes[i], scale) * factor;
    }
    return;
  }
  const DecodeTable table(scale, factor);
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    out[i] = table[codes[i]];
  }
}

}  // namespace gradwire::compress::l8
