#include "compress/l8.h"

#include "compress/hot.h"

namespace gradwire::compress::l8 {
namespace {

// The smallest mantissas that round up to j + 1 eighths of an octave: kRound seen from the other side. A
// chain of comparisons vectorises everywhere, a table look-up only where gathers are fast.
constexpr std::array<uint32_t, 8> kThreshold = {0x05aac4, 0x11c3d4, 0x1ef533, 0x2d583f,
                                                0x3d08a4, 0x4e248d, 0x60ccdf, 0x75257e};

constexpr size_t kTableFrom = 256;  // fewer elements do not repay the table of all codes

// All ones where a >= b (both below 2^31), for branch-free selection.
inline uint32_t at_least(uint32_t a, uint32_t b) {
  return -static_cast<uint32_t>(static_cast<int32_t>(a) >= static_cast<int32_t>(b));
}

// One step of the chain: counts the eighths and walks the decoded mantissa along.
template <size_t J>
inline void round_step(uint32_t mantissa, uint32_t& eighths, uint32_t& decoded) {
  constexpr uint32_t step = (J == 7 ? 0x800000 : kMantissa[(J + 1) % 8]) - kMantissa[J];
  const uint32_t above = at_least(mantissa, kThreshold[J]);
  eighths -= above;
  decoded += above & step;
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

GRADWIRE_HOT void encode_block(float* values, size_t count, uint32_t scale, uint8_t* codes) {
  const uint32_t limit = static_cast<uint32_t>(code_limit(scale));
  const uint32_t offset = 119 - 8 * scale;
  const uint32_t largest = decode(static_cast<uint8_t>(limit), scale);
  // Codes below this index decode to zero although they are not zero themselves.
  constexpr uint32_t smallest_index = 8;
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i];
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t mantissa = bits & 0x7fffff;
    uint32_t index = magnitude >> 23 << 3;
    uint32_t decoded = magnitude & kInfinity;
    round_step<0>(mantissa, index, decoded);
    round_step<1>(mantissa, index, decoded);
    round_step<2>(mantissa, index, decoded);
    round_step<3>(mantissa, index, decoded);
    round_step<4>(mantissa, index, decoded);
    round_step<5>(mantissa, index, decoded);
    round_step<6>(mantissa, index, decoded);
    round_step<7>(mantissa, index, decoded);
    const uint32_t code = index + offset;
    const uint32_t sent = at_least(code, 1);
    const uint32_t not_finite = at_least(magnitude, kInfinity);
    const uint32_t capped =
        static_cast<uint32_t>(std::min(static_cast<int32_t>(code), static_cast<int32_t>(limit)));
    const uint32_t symbol = sent & ((bits >> 24 & 0x80) | capped);
    codes[i] = static_cast<uint8_t>((symbol & ~not_finite) | (not_finite & kNotFinite));
    const uint32_t nonzero = sent & at_least(index, smallest_index);
    const uint32_t result = nonzero & (std::min(decoded, largest) | (bits & 0x80000000));
    values[i] = value - std::bit_cast<float>((result & ~not_finite) | (not_finite & kNan));
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
