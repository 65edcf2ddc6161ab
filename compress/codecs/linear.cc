// int8 and int4: multiples of a step that is the group's largest magnitude over the largest code (127 of 256
// elements, 7 of 32). Stochastic rounding is QSGD's (Alistarh et al., NeurIPS 2017) with the maximum norm.
// docs/wire-format.md has both formats.
#include <cmath>
#include <limits>

#include "compress/codecs/dense.h"

namespace gradwire::compress {
namespace {

// Groups below this are sent as zeros and stay in the residual: a step's inverse has to be a float.
constexpr float kLeastMagnitude = 0x1p-100F;

float largest_of(const float* values, size_t n) {
  return std::bit_cast<float>(max_magnitude(values, n));
}

// The code of `value` in steps; |value * inverse| is at most about `most`.
inline int quantise(float value, float inverse, float most, bool stochastic, uint32_t random) {
  const float steps = value * inverse;
  const float rounded =
      stochastic ? std::floor(steps + (static_cast<float>(random) + 0.5F) * 0x1p-16F) : std::nearbyint(steps);
  return static_cast<int>(std::clamp(rounded, -most, most));
}

// What a sender writes: the group's largest code decodes to a finite number.
bool is_step(float step, float most) {
  return step >= 0 && step * most <= std::numeric_limits<float>::max();
}

// Group after group: the step, then the codes.
struct Int8 {
  static constexpr const char* kName = "an int8 block";
  static constexpr size_t kGroup = 256;
  bool stochastic = false;

  size_t bytes(uint64_t n) const { return n + 4 * ((n + kGroup - 1) / kGroup); }

  bool valid(const std::byte* block, size_t n) const {
    for (size_t begin = 0; begin < n; begin += kGroup, block += 4 + kGroup) {
      const auto* const codes = reinterpret_cast<const int8_t*>(block + 4);
      if (!is_step(load<float>(block), 127) || std::find(codes, codes + std::min(kGroup, n - begin), -128) !=
                                                   codes + std::min(kGroup, n - begin)) {
        return false;
      }
    }
    return true;
  }

  void decode(const std::byte* block, size_t n, float* out) const {
    for (size_t begin = 0; begin < n; begin += kGroup, block += 4 + kGroup) {
      const float step = load<float>(block);
      for (size_t i = 0; i < std::min(kGroup, n - begin); ++i) {
        out[begin + i] = static_cast<float>(static_cast<int8_t>(block[4 + i])) * step;
      }
    }
  }

  void encode(float* values, size_t n, uint32_t, const RandomBits& random, std::byte* block) const {
    for (size_t begin = 0; begin < n; begin += kGroup, block += 4 + kGroup) {
      const size_t count = std::min(kGroup, n - begin);
      const float largest = largest_of(values + begin, count);
      float step = largest < kLeastMagnitude ? 0.0F : largest / 127;
      if (step * 127 > std::numeric_limits<float>::max()) {
        step = std::nextafter(step, 0.0F);
      }
      const float inverse = step > 0 ? 127 / largest : 0.0F;
      store(block, step);
      for (size_t i = 0; i < count; ++i) {
        float& value = values[begin + i];
        const int code = quantise(value, inverse, 127, stochastic, stochastic ? random(begin + i) : 0);
        block[4 + i] = static_cast<std::byte>(code);
        value -= static_cast<float>(code) * step;
      }
    }
  }
};

// Group after group: the step as the upper half of a float, rounded up, then the codes, two in a byte, the
// first in its lower half. A short last group has half a byte of zeros where its number is odd.
struct Int4 {
  static constexpr const char* kName = "an int4 block";
  static constexpr size_t kGroup = 32;
  static constexpr size_t kGroupBytes = 2 + kGroup / 2;
  bool stochastic = false;

  size_t bytes(uint64_t n) const {
    return n / kGroup * kGroupBytes + (n % kGroup > 0 ? 2 + (n % kGroup + 1) / 2 : 0);
  }

  // Of a code's four bits the lowest value, -8, is none that a sender writes.
  static bool has_eight(const std::byte* codes, size_t count) {
    bool found = false;
    for (size_t i = 0; i < count; ++i) {
      found |= ((std::to_integer<uint32_t>(codes[i / 2]) >> (4 * (i & 1))) & 15) == 8;
    }
    return found;
  }

  static float step_of(const std::byte* group) {
    return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(group)) << 16);
  }

  bool valid(const std::byte* block, size_t n) const {
    const std::byte* group = block;
    for (size_t begin = 0; begin < n; begin += kGroup, group += kGroupBytes) {
      if (!is_step(step_of(group), 7) || has_eight(group + 2, std::min(kGroup, n - begin))) {
        return false;
      }
    }
    return n % 2 == 0 || std::to_integer<unsigned>(block[bytes(n) - 1]) < 16;
  }

  void decode(const std::byte* block, size_t n, float* out) const {
    for (size_t begin = 0; begin < n; begin += kGroup, block += kGroupBytes) {
      const float step = step_of(block);
      for (size_t i = 0; i < std::min(kGroup, n - begin); ++i) {
        const auto both = std::to_integer<uint32_t>(block[2 + i / 2]);
        const uint32_t code = (both >> (4 * (i & 1))) & 15;
        out[begin + i] = static_cast<float>(static_cast<int>(code ^ 8) - 8) * step;
      }
    }
  }

  static float step_for(float largest) {
    if (largest < kLeastMagnitude) {
      return 0;
    }
    const uint32_t bits = std::bit_cast<uint32_t>(largest / 7);
    const float up = std::bit_cast<float>((bits + 0xffff) & 0xffff0000);
    return up * 7 <= std::numeric_limits<float>::max() ? up : std::bit_cast<float>(bits & 0xffff0000);
  }

  void encode(float* values, size_t n, uint32_t, const RandomBits& random, std::byte* block) const {
    for (size_t begin = 0; begin < n; begin += kGroup, block += kGroupBytes) {
      const size_t count = std::min(kGroup, n - begin);
      const float step = step_for(largest_of(values + begin, count));
      const float inverse = step > 0 ? 1 / step : 0.0F;
      store(block, static_cast<uint16_t>(std::bit_cast<uint32_t>(step) >> 16));
      uint32_t both = 0;
      for (size_t i = 0; i < count; ++i) {
        float& value = values[begin + i];
        const int code = quantise(value, inverse, 7, stochastic, stochastic ? random(begin + i) : 0);
        value -= static_cast<float>(code) * step;
        both |= (static_cast<uint32_t>(code) & 15) << (4 * (i & 1));
        block[2 + i / 2] = static_cast<std::byte>(both);
        both = (i & 1) == 0 ? both : 0;
      }
    }
  }
};

bool is_stochastic(const CodecSettings& settings) {
  return settings.rounding == Rounding::kStochastic;
}

}  // namespace

std::unique_ptr<BlockCodec> make_int8(const CodecUse& use) {
  return std::make_unique<DenseCodec<Int8>>(Int8{is_stochastic(use.settings)}, use);
}

std::unique_ptr<BlockCodec> make_int4(const CodecUse& use) {
  return std::make_unique<DenseCodec<Int4>>(Int4{is_stochastic(use.settings)}, use);
}

}  // namespace gradwire::compress
