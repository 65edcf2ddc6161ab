// Conversions of 16-bit floats against the compiler's own, over all values and around all ties.
#include "compress/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace gradwire::compress {
namespace {

float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Float16, WidensEveryValueExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = Float16::widen(half);
    const int exponent = (half >> 10) & 31;
    const int mantissa = half & 0x3ff;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(wide), mantissa != 0) << bits;
      ASSERT_EQ(std::isinf(wide), mantissa == 0) << bits;
      // Payload and sign are kept; the quiet bit is set.
      const uint32_t expected = ((bits & 0x8000) << 16) | 0x7f800000 |
                                (static_cast<uint32_t>(mantissa) << 13) | (mantissa != 0 ? 0x00400000 : 0);
      ASSERT_EQ(std::bit_cast<uint32_t>(wide), expected);
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(static_cast<double>(wide), (half & 0x8000) != 0 ? -magnitude : magnitude) << bits;
    ASSERT_EQ(std::signbit(wide), (half & 0x8000) != 0);
  }
}

TEST(Float16, EveryValueComesBackAndOnlyNanBecomesQuiet) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool nan = (bits & 0x7fff) > 0x7c00;
    ASSERT_EQ(Float16::narrow(Float16::widen(static_cast<uint16_t>(bits))), nan ? bits | 0x200 : bits);
  }
}

TEST(Bfloat16, EveryValueComesBackAndOnlyNanBecomesQuiet) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool nan = (bits & 0x7fff) > 0x7f80;
    const float wide = Bfloat16::widen(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), (nan ? bits | 0x40 : bits) << 16);
    ASSERT_EQ(Bfloat16::narrow(wide), nan ? bits | 0x40 : bits);
  }
}

// Midway between two neighbours the even one is taken; a hair beside it the nearer one.
template <typename Half>
void expect_ties_to_even(uint16_t last_finite) {
  for (uint32_t bits = 0; bits < last_finite; ++bits) {
    const double low = static_cast<double>(Half::widen(static_cast<uint16_t>(bits)));
    const double high = static_cast<double>(Half::widen(static_cast<uint16_t>(bits + 1)));
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    ASSERT_EQ(Half::narrow(middle), bits + bits % 2) << bits;
    ASSERT_EQ(Half::narrow(std::nextafter(middle, 0.0F)), bits) << bits;
    ASSERT_EQ(Half::narrow(std::nextafter(middle, HUGE_VALF)), bits + 1) << bits;
    ASSERT_EQ(Half::narrow(-middle), 0x8000 | (bits + bits % 2)) << bits;
  }
}

TEST(Float16, TiesGoToTheEvenNeighbourAlsoBelowTheNormalValues) {
  expect_ties_to_even<Float16>(0x7bff);
}

TEST(Bfloat16, TiesGoToTheEvenNeighbour) {
  expect_ties_to_even<Bfloat16>(0x7f7f);
}

TEST(Float16, WhatRoundsBeyondTheLargestValueIsInfinity) {
  EXPECT_EQ(Float16::narrow(65504.0F), 0x7bff);
  EXPECT_EQ(Float16::narrow(std::nextafter(65520.0F, 0.0F)), 0x7bff);
  EXPECT_EQ(Float16::narrow(65520.0F), 0x7c00);
  EXPECT_EQ(Float16::narrow(-65520.0F), 0xfc00);
  EXPECT_EQ(Float16::narrow(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(Float16::narrow(-HUGE_VALF), 0xfc00);
}

TEST(Float16, WhatIsTooSmallIsZeroWithItsSign) {
  EXPECT_EQ(Float16::narrow(0x1p-25F), 0);
  EXPECT_EQ(Float16::narrow(std::nextafter(0x1p-25F, 1.0F)), 1);
  EXPECT_EQ(Float16::narrow(-0x1p-25F), 0x8000);
  EXPECT_EQ(Float16::narrow(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Bfloat16, WhatRoundsBeyondTheLargestValueIsInfinity) {
  EXPECT_EQ(Bfloat16::narrow(from_bits(0x7f7f7fff)), 0x7f7f);
  EXPECT_EQ(Bfloat16::narrow(from_bits(0x7f7f8000)), 0x7f80);
  EXPECT_EQ(Bfloat16::narrow(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Bfloat16, ByChanceIsEitherNeighbourAndTheValueInTheMean) {
  std::vector<uint16_t> halves(100'000);
  for (const float value : {1.0F / 3, -1.0F / 3, 1e-39F, 0x1.01p100F}) {
    const std::vector<float> values(halves.size(), value);
    narrow_bf16_by_chance(values.data(), 7, reinterpret_cast<std::byte*>(halves.data()), halves.size());
    const auto [low, high] = std::minmax_element(halves.begin(), halves.end());
    ASSERT_EQ(*high, *low + 1);
    double sum = 0;
    for (const uint16_t half : halves) {
      sum += static_cast<double>(Bfloat16::widen(half));
    }
    const double gap = std::abs(static_cast<double>(Bfloat16::widen(*high) - Bfloat16::widen(*low)));
    const auto count = static_cast<double>(halves.size());
    ASSERT_NEAR(sum / count, static_cast<double>(value), 5 * 0.5 * gap / std::sqrt(count)) << value;
  }
}

TEST(Bfloat16, ByChanceKeepsWhatItHasAndStaysFinite) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    values.push_back(Bfloat16::widen(static_cast<uint16_t>(bits)));
    values.push_back(-values.back());
  }
  std::vector<uint16_t> halves(values.size());
  narrow_bf16_by_chance(values.data(), 1, reinterpret_cast<std::byte*>(halves.data()), halves.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(halves[i], std::bit_cast<uint32_t>(values[i]) >> 16);
  }
  EXPECT_EQ(Bfloat16::narrow_by_chance(std::numeric_limits<float>::max(), 0xffff), 0x7f7f);
  EXPECT_EQ(Bfloat16::narrow_by_chance(-std::numeric_limits<float>::max(), 0xffff), 0xff7f);
}

TEST(Halves, NanOfAnyPayloadStaysNan) {
  for (const uint32_t bits : {0x7f800001U, 0x7f801fffU, 0x7fffffffU, 0xff800001U, 0x7fc00000U}) {
    const uint16_t half = Float16::narrow(from_bits(bits));
    EXPECT_EQ(half & 0x7e00, 0x7e00) << bits;
    EXPECT_EQ(half & 0x8000, (bits >> 16) & 0x8000);
    EXPECT_EQ(Bfloat16::narrow(from_bits(bits)) & 0x7fc0, 0x7fc0) << bits;
  }
}

#if defined(__FLT16_MAX__) && defined(__SSE2__)
TEST(Float16, AgreesWithTheCompilersOwnOnRandomBits) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000000; ++i) {
    // Half of the draws lie where fp16 has values.
    uint32_t bits = random();
    if (i % 2 == 0) {
      bits = (bits & 0x807fffff) | ((98 + random() % 48) << 23);
    }
    const float value = from_bits(bits);
    if (std::isnan(value)) {
      continue;
    }
    ASSERT_EQ(Float16::narrow(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << bits;
  }
}
#endif

TEST(Halves, LoopsDoWhatTheSingleConversionsDo) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i);
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(halves.data());
  std::vector<float> wide(halves.size());
  std::vector<uint16_t> back(halves.size());
  auto* const out = reinterpret_cast<std::byte*>(back.data());
  const auto same = [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
  widen_fp16(bytes, wide.data(), wide.size());
  narrow_fp16(wide.data(), 3.0F, out, wide.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    ASSERT_TRUE(same(wide[i], Float16::widen(halves[i]))) << i;
    ASSERT_EQ(back[i], Float16::narrow(wide[i] / 3.0F)) << i;
  }
  widen_bf16(bytes, wide.data(), wide.size());
  narrow_bf16(wide.data(), 3.0F, out, wide.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    ASSERT_TRUE(same(wide[i], Bfloat16::widen(halves[i]))) << i;
    ASSERT_EQ(back[i], Bfloat16::narrow(wide[i] / 3.0F)) << i;
  }
}

}  // namespace
}  // namespace gradwire::compress
