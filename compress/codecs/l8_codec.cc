// l8: sign and 7 bits of base-2 logarithm, in steps of 1/8 octave (l8.h) or 1/16 of half the range, rounded
// to the nearest or, unbiased, by chance. docs/wire-format.md has both formats.
#include "compress/block_l8.h"
#include "compress/codecs/dense.h"
#include "compress/geometry.h"
#include "compress/l8.h"

namespace gradwire::compress {
namespace {

template <uint32_t kSteps>
struct Octave;  // kMantissa[j] is that of 2^(j/kSteps); kUp[j] the least one that is nearer, by logarithm, to
                // j + 1

template <>
struct Octave<8> {
  static constexpr std::array<uint32_t, 8> kMantissa = l8::kMantissa;
  static constexpr std::array<uint32_t, 8> kUp = l8::kRoundUpFrom;
};

template <>
struct Octave<16> {
  static constexpr std::array<uint32_t, 16> kMantissa = {
      0x000000, 0x05aac3, 0x0b95c2, 0x11c3d3, 0x1837f0, 0x1ef532, 0x25fed7, 0x2d583f,
      0x3504f3, 0x3d08a4, 0x45672a, 0x4e248c, 0x5744fd, 0x60ccdf, 0x6ac0c7, 0x75257d};
  static constexpr std::array<uint32_t, 16> kUp = {0x02cd87, 0x08980f, 0x0ea43a, 0x14f4f0, 0x1b8d3a, 0x227044,
                                                   0x29a15b, 0x3123f6, 0x38fbb0, 0x412c4d, 0x49b9be, 0x52a81e,
                                                   0x5bfbb8, 0x65b907, 0x6fe4ba, 0x7a83b3};
};

template <uint32_t kSteps>
struct Logarithmic {
  static constexpr const char* kName = "an l8 block";
  static constexpr auto kSigned = static_cast<int32_t>(kSteps);
  static constexpr int32_t kMaxIndex = 254 * kSigned + kSigned - 1;  // of a finite value
  static constexpr int32_t kOffset = 127 - kSigned;                  // of the block's largest octave

  bool stochastic = false;

  size_t bytes(uint64_t n) const { return l8_block_bytes(n); }
  bool valid(const std::byte*, size_t) const { return true; }

  static uint32_t magnitude_of(int32_t code, int32_t scale) {
    const int32_t index = std::min(code - kOffset + kSigned * scale, kMaxIndex);
    if (code == 0 || index < kSigned) {
      return 0;
    }
    const auto t = static_cast<uint32_t>(index);
    return (t / kSteps << 23) + Octave<kSteps>::kMantissa[t % kSteps];
  }

  static std::array<float, 128> values_of(int32_t scale) {
    std::array<float, 128> values;
    for (int32_t code = 0; code < 128; ++code) {
      values[static_cast<size_t>(code)] = std::bit_cast<float>(magnitude_of(code, scale));
    }
    return values;
  }

  void decode(const std::byte* block, size_t n, float* out) const {
    const auto values = values_of(std::to_integer<int32_t>(block[0]));
    for (size_t i = 0; i < n; ++i) {
      const auto code = std::to_integer<uint32_t>(block[1 + i]);
      const uint32_t magnitude = std::bit_cast<uint32_t>(values[code & 127]);
      out[i] = std::bit_cast<float>(code == l8::kNotFinite ? l8::kNan : magnitude | (code & 128) << 24);
    }
  }

  // The code below the sign; `values` are those of the block's scale.
  int32_t code_of(uint32_t magnitude, int32_t scale, const std::array<float, 128>& values,
                  uint32_t random) const {
    using Table = Octave<kSteps>;
    const uint32_t mantissa = magnitude & 0x7fffff;
    const auto exponent = static_cast<int32_t>(magnitude >> 23);
    const int32_t limit = std::min(127, kMaxIndex - kSigned * scale + kOffset);
    int32_t step = 0;
    if (!stochastic) {
      for (const uint32_t up : Table::kUp) {
        step += mantissa >= up ? 1 : 0;
      }
      const int32_t code = exponent * kSigned + step - kSigned * scale + kOffset;
      return code < 1 || exponent == 0 ? 0 : std::min(code, limit);
    }
    for (size_t j = 1; j < kSteps; ++j) {
      step += mantissa >= Table::kMantissa[j] ? 1 : 0;
    }
    const int32_t code = exponent * kSigned + step - kSigned * scale + kOffset;
    if (code < 1 || exponent == 0) {
      const float least = values[1];
      return static_cast<float>(random) * least < std::bit_cast<float>(magnitude) * 65536 ? 1 : 0;
    }
    const auto at = static_cast<size_t>(step);
    const uint32_t low = Table::kMantissa[at];
    const uint64_t gap = (at + 1 < kSteps ? Table::kMantissa[at + 1] : 0x800000U) - low;
    return std::min(code + ((random * gap) >> 16 < mantissa - low ? 1 : 0), limit);
  }

  void encode(float* values, size_t n, uint32_t largest, const RandomBits& random, std::byte* block) const {
    const uint32_t scale = l8::scale_of(largest);
    block[0] = static_cast<std::byte>(scale);
    const auto decoded = values_of(static_cast<int32_t>(scale));
    for (size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(values[i]);
      const uint32_t magnitude = bits & 0x7fffffff;
      const int32_t code =
          code_of(magnitude, static_cast<int32_t>(scale), decoded, stochastic ? random(i) : 0);
      const float sent = decoded[static_cast<size_t>(code)];
      const uint32_t sign = sent > 0 ? bits >> 31 : 0;
      block[1 + i] = static_cast<std::byte>(sign << 7 | static_cast<uint32_t>(sent > 0 ? code : 0));
      values[i] -= sign != 0 ? -sent : sent;
    }
  }
};

// Eight steps, to the nearest: the kernels of l8.h.
class L8Codec final : public BlockCodec {
 public:
  size_t max_bytes(uint64_t elements) const override { return l8_block_bytes(elements); }
  Result<BlockOutcome> hop(const BlockInput& input, std::byte* out, BlockRecord& record) override {
    return hop_l8(input, out, record);
  }
  Status decode(ByteReader& bytes, uint32_t elements, float factor, float* result) override {
    return decode_l8(bytes, elements, factor, result);
  }
  Status add_decoded(ByteReader& bytes, uint32_t elements, float* /*scratch*/, float* sum) override {
    return add_l8(bytes, elements, sum);
  }
};

// Whether L8Codec is what writes it.
bool is_fused(const CodecSettings& settings) {
  return settings.rounding == Rounding::kNearest && settings.steps_per_octave == 8;
}

}  // namespace

uint32_t l8_scratch(const CodecSettings& settings) {
  return is_fused(settings) ? 0 : sizeof(float);  // a decoded block
}

std::unique_ptr<BlockCodec> make_l8(const CodecUse& use) {
  if (is_fused(use.settings)) {
    return std::make_unique<L8Codec>();
  }
  const bool stochastic = use.settings.rounding == Rounding::kStochastic;
  if (use.settings.steps_per_octave == 16) {
    return std::make_unique<DenseCodec<Logarithmic<16>>>(Logarithmic<16>{stochastic}, use);
  }
  return std::make_unique<DenseCodec<Logarithmic<8>>>(Logarithmic<8>{stochastic}, use);
}

}  // namespace gradwire::compress
