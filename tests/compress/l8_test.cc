#include "compress/l8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace gradwire::compress::l8 {
namespace {

constexpr uint32_t kMantissas = 1U << 23;

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

// Eighths of an octave, rounded: what the integer tables must reproduce.
int32_t eighths(uint32_t mantissa) {
  return static_cast<int32_t>(std::lround(8 * std::log2(1 + mantissa / 8388608.0)));
}

TEST(L8, RoundsEveryMantissaAsTheLogarithmDoes) {
  for (uint32_t mantissa = 0; mantissa < kMantissas; ++mantissa) {
    const int32_t expected = eighths(mantissa) + 119;
    ASSERT_EQ(encode((100U << 23) | mantissa, 100), expected) << mantissa;
  }
}

TEST(L8, HandlesEveryMantissaAtTheEndsOfTheExponentRange) {
  for (const uint32_t exponent : {1U, 2U, 253U, 254U}) {
    const int32_t limit = std::min(127, 2158 - 8 * static_cast<int32_t>(exponent));
    for (uint32_t mantissa = 0; mantissa < kMantissas; ++mantissa) {
      const uint32_t bits = (exponent << 23) | mantissa;
      const uint8_t code = encode(bits, exponent);
      ASSERT_EQ(code, std::min(eighths(mantissa) + 119, limit)) << bits;
      const float value = std::bit_cast<float>(bits);
      const float back = decode_float(code, exponent);
      ASSERT_TRUE(std::isfinite(back)) << bits;
      if (bits <= 0x7f6ac0c7) {
        ASSERT_LE(std::abs(back - value), 0.0443F * value) << bits;
      }
    }
  }
}

TEST(L8, SendsADenormalBlockAsSmallCodesThatDecodeToZero) {
  for (uint32_t mantissa = 0; mantissa < kMantissas; ++mantissa) {
    const float back = decode_float(encode(mantissa, 0), 0);
    ASSERT_TRUE(back == 0.0F || std::abs(back) >= std::numeric_limits<float>::min()) << mantissa;
    ASSERT_LE(back, std::numeric_limits<float>::min());
  }
  // The formula gives zeros a code that is not zero where the scale is this small; it decodes to zero.
  EXPECT_EQ(decode(encode(0, 0), 0), 0U);
  EXPECT_EQ(decode(encode(0x80000000, 0), 0), 0U);
  EXPECT_EQ(encode(bits_of(-1e-42F), 127), 0);
}

TEST(L8, NothingNearTheLargestFloatDecodesToInfinity) {
  const float largest = std::numeric_limits<float>::max();
  for (const float value : {largest, -largest, largest * 0.99F, 3.3e38F, -3.1e38F, 3.0e38F}) {
    const uint8_t code = encode(bits_of(value), scale_of(bits_of(largest)));
    EXPECT_TRUE(std::isfinite(decode_float(code, 254))) << value;
    EXPECT_EQ(std::signbit(decode_float(code, 254)), std::signbit(value));
  }
}

TEST(L8, MarksWhatIsNotFinite) {
  for (const uint32_t bits : {0x7f800000U, 0xff800000U, 0x7fc00000U, 0xffc12345U, 0x7f800001U, 0x7fffffffU}) {
    EXPECT_EQ(encode(bits, 255), kNotFinite);
    EXPECT_EQ(encode(bits, 3), kNotFinite);
  }
  for (uint32_t scale = 0; scale < 256; ++scale) {
    EXPECT_TRUE(std::isnan(decode_float(kNotFinite, scale)));
    EXPECT_EQ(decode(0, scale), 0U);
  }
}

TEST(L8, EveryCodeOfEveryScaleDecodesToAFiniteNumberInOrder) {
  for (uint32_t scale = 0; scale < 256; ++scale) {
    float previous = 0;
    for (uint32_t code = 1; code < 128; ++code) {
      const float value = decode_float(static_cast<uint8_t>(code), scale);
      ASSERT_TRUE(std::isfinite(value));
      ASSERT_GE(value, previous);
      const float negative = decode_float(static_cast<uint8_t>(code | 128), scale);
      ASSERT_EQ(negative, -value);
      previous = value;
    }
  }
}

TEST(L8, DecodedMantissasArePowersOfTheEighthRootOfTwo) {
  for (uint32_t j = 0; j < 8; ++j) {
    const auto exact = static_cast<float>(std::exp2(j / 8.0));
    EXPECT_EQ(decode_float(static_cast<uint8_t>(119 + j - 8), 128), exact);
  }
}

TEST(L8, HasTheStatedErrorAndRange) {
  std::mt19937 random(3);
  std::uniform_int_distribution<uint32_t> mantissa(0, kMantissas - 1);
  double squares = 0;
  double worst = 0;
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    const uint32_t bits = (120U << 23) | mantissa(random);
    const double value = std::bit_cast<float>(bits);
    const double error = (decode_float(encode(bits, 125), 125) - value) / value;
    squares += error * error;
    worst = std::max(worst, std::abs(error));
  }
  EXPECT_LT(worst, 0.0443);
  EXPECT_NEAR(std::sqrt(squares / kDraws), 0.025, 0.001);
  // 14.75 octaves below 2^0, the smallest value with this scale's exponent.
  EXPECT_NE(encode(bits_of(std::exp2(-14.75F)), 127), 0);
  EXPECT_EQ(encode(bits_of(std::exp2(-14.9F)), 127), 0);
}

TEST(L8Block, EncodesEveryMantissaAsTheSingleElementFormulaDoes) {
  constexpr size_t kBlock = 4096;
  std::vector<float> values(kBlock);
  std::vector<uint8_t> codes(kBlock);
  for (uint32_t begin = 0; begin < kMantissas; begin += kBlock) {
    const uint32_t sign = begin & 4096 ? 0x80000000 : 0;
    for (size_t i = 0; i < kBlock; ++i) {
      values[i] = std::bit_cast<float>(sign | (140U << 23) | (begin + static_cast<uint32_t>(i)));
    }
    const std::vector<float> original = values;
    encode_block(values.data(), kBlock, 140, codes.data());
    for (size_t i = 0; i < kBlock; ++i) {
      ASSERT_EQ(codes[i], encode(bits_of(original[i]), 140)) << original[i];
      ASSERT_EQ(values[i], original[i] - decode_float(codes[i], 140)) << original[i];
    }
  }
}

TEST(L8Block, AgreesWithTheFormulaForEveryScaleAndLength) {
  std::mt19937 random(11);
  for (uint32_t scale = 0; scale < 256; ++scale) {
    const size_t count = scale % 71 + (scale % 5 == 0 ? 300 : 0);
    std::vector<float> values(count);
    for (float& value : values) {
      const uint32_t exponent = scale - std::min(scale, static_cast<uint32_t>(random() % 20));
      value = std::bit_cast<float>((exponent << 23) | (static_cast<uint32_t>(random()) & 0x807fffff));
    }
    const std::vector<float> original = values;
    std::vector<uint8_t> codes(count);
    encode_block(values.data(), count, scale, codes.data());
    std::vector<float> decoded(count);
    const std::vector<float> zeros(count);
    decode_scaled(codes.data(), count, scale, 1.0F, decoded.data());
    std::vector<float> sums(count);
    decode_add(codes.data(), count, scale, zeros.data(), sums.data());
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(codes[i], encode(bits_of(original[i]), scale));
      const float expected = decode_float(codes[i], scale);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[i]) && std::isnan(decoded[i]) && std::isnan(sums[i]));
      } else {
        ASSERT_EQ(bits_of(decoded[i]), bits_of(expected));
        ASSERT_EQ(sums[i], expected);
        ASSERT_EQ(values[i], original[i] - expected);
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::compress::l8
