// onebit: the sign of every element, and their mean magnitude (EF-SignSGD, Karimireddy et al., ICML 2019, by
// block). Every hop signs anew, with its residual. docs/wire-format.md has the format.
#include "compress/codecs/dense.h"
#include "compress/codecs/magnitudes.h"
#include "compress/words.h"

namespace gradwire::compress {
namespace {

struct OneBit {
  static constexpr const char* kName = "a onebit block";

  size_t bytes(uint64_t n) const { return 4 + (n + 7) / 8; }

  bool valid(const std::byte* block, size_t n) const {
    const auto mean = load<float>(block);
    return mean >= 0 && std::bit_cast<uint32_t>(mean) < l8::kInfinity && padding_is_zero(block + 4, n);
  }

  void decode(const std::byte* block, size_t n, float* out) const {
    const auto mean = load<uint32_t>(block);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bit = (std::to_integer<uint32_t>(block[4 + i / 8]) >> (i % 8)) & 1;
      out[i] = std::bit_cast<float>(mean | bit << 31);
    }
  }

  void encode(float* values, size_t n, uint32_t, const RandomBits&, std::byte* block) const {
    const float mean = mean_magnitude(values, n);
    store(block, mean);
    for (size_t begin = 0; begin < n; begin += 8) {
      uint32_t bits = 0;
      for (size_t i = begin; i < std::min(begin + 8, n); ++i) {
        const uint32_t negative = std::bit_cast<uint32_t>(values[i]) >> 31;
        bits |= negative << (i - begin);
        values[i] -= negative != 0 ? -mean : mean;
      }
      block[4 + begin / 8] = static_cast<std::byte>(bits);
    }
  }
};

}  // namespace

std::unique_ptr<BlockCodec> make_onebit(const CodecUse& use) {
  return std::make_unique<DenseCodec<OneBit>>(OneBit{}, use);
}

}  // namespace gradwire::compress
