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
  static constexpr uint32_t kBlock = 4096;
  // Biased exponent of 2^14; below kLeast the scale's inverse would not be a float.
  static constexpr int kTop = 141;
  static constexpr uint32_t kLeast = 14;

  static float unit(uint32_t scale) { return std::ldexp(1.0F, static_cast<int>(scale) - kTop); }

  size_t bytes(uint64_t n) const { return 1 + 2 * n; }

  bool valid(const std::byte* block, size_t) const {
    const auto scale = std::to_integer<uint32_t>(block[0]);
    return scale >= kLeast && scale < 255;
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
      widen_fp16(block + 1 + 2 * begin, sent.data(), count);
      for (size_t i = 0; i < count; ++i) {
        values[begin + i] -= sent[i] * step;
      }
    }
  }
};

struct Bf16 {
  static constexpr const char* kName = "a bf16 block";
  static constexpr uint32_t kBlock = 4096;

  size_t bytes(uint64_t n) const { return 2 * n; }
  bool valid(const std::byte*, size_t) const { return true; }
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

std::unique_ptr<BlockCodec> make_fp16(const CodecSettings&) {
  return std::make_unique<DenseCodec<Fp16>>(Fp16{});
}

std::unique_ptr<BlockCodec> make_bf16(const CodecSettings&) {
  return std::make_unique<DenseCodec<Bf16>>(Bf16{});
}

}  // namespace gradwire::compress
