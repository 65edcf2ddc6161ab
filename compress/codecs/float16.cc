// fp16: binary16 at a power of two that puts the block's largest magnitude into [2^14, 2^15), so that 11 bits
// of precision last over 28 octaves below it. bf16: a float's upper half, the largest finite one instead of
// Inf. docs/wire-format.md has both formats.
#include <cmath>

#include "compress/codecs/dense.h"
#include "compress/half.h"

namespace gradwire::compress {
namespace {

constexpr uint32_t kHalfTile = 256;

struct Fp16 {
  static constexpr const char* kName = "an fp16 block";
  // Biased exponent of 2^14; below kLeast the scale's inverse would not be a float.
  static constexpr int kTop = 141;
  static constexpr uint32_t kLeast = 14;
  static constexpr uint32_t kHighest = 254;

  static float unit(uint32_t scale) { return std::ldexp(1.0F, static_cast<int>(scale) - kTop); }

  size_t bytes(uint64_t n) const { return 1 + 2 * n; }

  // The largest half of a scale: with the highest one, 2^15 would decode to Inf.
  static uint16_t most(uint32_t scale) { return scale == kHighest ? 0x77ff : 0x7bff; }

  bool valid(const std::byte* block, size_t n) const {
    const auto scale = std::to_integer<uint32_t>(block[0]);
    if (scale < kLeast || scale > kHighest) {
      return false;
    }
    bool good = true;
    for (size_t i = 0; i < n; ++i) {
      good &= (load<uint16_t>(block + 1 + 2 * i) & 0x7fff) <= most(scale);
    }
    return good;
  }

  static void keep_finite(std::byte* halves, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const auto half = load<uint16_t>(halves + 2 * i);
      const bool over = (half & 0x7fff) > most(kHighest);
      store(halves + 2 * i, static_cast<uint16_t>(over ? (half & 0x8000) | most(kHighest) : half));
    }
  }

  void decode(const std::byte* block, size_t n, float* out) const {
    widen_fp16(block + 1, out, n);
    multiply(out, unit(std::to_integer<uint32_t>(block[0])), out, n);
  }

  void encode(float* values, size_t n, uint32_t largest, const RandomBits&, std::byte* block) const {
    const uint32_t scale = std::max(largest >> 23, kLeast);
    block[0] = static_cast<std::byte>(scale);
    const float step = unit(scale);
    std::array<float, kHalfTile> sent;
    for (size_t begin = 0; begin < n; begin += kHalfTile) {
      const size_t count = std::min<size_t>(kHalfTile, n - begin);
      narrow_fp16(values + begin, step, block + 1 + 2 * begin, count);
      if (scale == kHighest) {
        keep_finite(block + 1 + 2 * begin, count);
      }
      widen_fp16(block + 1 + 2 * begin, sent.data(), count);
      for (size_t i = 0; i < count; ++i) {
        values[begin + i] -= sent[i] * step;
      }
    }
  }
};

struct Bf16 {
  static constexpr const char* kName = "a bf16 block";

  size_t bytes(uint64_t n) const { return 2 * n; }
  bool valid(const std::byte* block, size_t n) const {
    bool good = true;
    for (size_t i = 0; i < n; ++i) {
      good &= (load<uint16_t>(block + 2 * i) & 0x7fff) < 0x7f80;
    }
    return good;
  }
  void decode(const std::byte* block, size_t n, float* out) const { widen_bf16(block, out, n); }

  void encode(float* values, size_t n, uint32_t, const RandomBits&, std::byte* block) const {
    for (size_t i = 0; i < n; ++i) {
      uint16_t half = Bfloat16::narrow(values[i]);
      half = (half & 0x7fff) == 0x7f80 ? static_cast<uint16_t>(half - 1) : half;
      store(block + 2 * i, half);
      values[i] -= Bfloat16::widen(half);
    }
  }
};

}  // namespace

std::unique_ptr<BlockCodec> make_fp16(const CodecUse& use) {
  return std::make_unique<DenseCodec<Fp16>>(Fp16{}, use);
}

std::unique_ptr<BlockCodec> make_bf16(const CodecUse& use) {
  return std::make_unique<DenseCodec<Bf16>>(Bf16{}, use);
}

}  // namespace gradwire::compress
