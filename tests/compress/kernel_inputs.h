// Inputs on which instruction sets could differ, and comparison to the bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "compress/cpu/kernels.h"

namespace gradwire::compress::cpu {

// Lengths from nothing to beyond two of the widest groups, and around a block.
inline std::vector<size_t> interesting_counts() {
  std::vector<size_t> counts;
  for (size_t count = 0; count <= 67; ++count) {
    counts.push_back(count);
  }
  counts.insert(counts.end(), {127, 128, 129, 1000, 4079, 4095, 4096});
  return counts;
}

enum class Kind { kGauss, kAnyBits, kSpecial, kEveryExponent, kDenormal, kHuge, kZeros };
inline constexpr Kind kKinds[] = {Kind::kGauss,    Kind::kAnyBits, Kind::kSpecial, Kind::kEveryExponent,
                                  Kind::kDenormal, Kind::kHuge,    Kind::kZeros};

inline std::vector<float> make_values(Kind kind, size_t count, uint32_t seed) {
  static constexpr uint32_t kSpecial[] = {0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff,
                                          0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                          0x7fc00000, 0xffc12345, 0x7f800001, 0x3f800000, 0xbf800000,
                                          0x7f6ac0c7, 0x7f75257e, 0x33800000};
  std::mt19937 random(seed);
  std::normal_distribution<float> gauss;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    switch (kind) {
      case Kind::kGauss:
        values[i] = gauss(random) * 1e-3F;
        break;
      case Kind::kAnyBits:
        values[i] = std::bit_cast<float>(bits);
        break;
      case Kind::kSpecial:
        values[i] = std::bit_cast<float>(kSpecial[bits % std::size(kSpecial)]);
        break;
      case Kind::kEveryExponent:
        values[i] = std::bit_cast<float>((bits & 0x807fffff) | static_cast<uint32_t>((i + seed) % 255) << 23);
        break;
      case Kind::kDenormal:
        values[i] = std::bit_cast<float>(bits & 0x80ffffff);
        break;
      case Kind::kHuge:
        values[i] = std::bit_cast<float>((bits & 0x80ffffff) | 0x7e000000);
        break;
      case Kind::kZeros:
        values[i] = bits % 2 == 0 ? 0.0F : -0.0F;
        break;
    }
  }
  return values;
}

inline std::vector<uint8_t> make_codes(size_t count, uint32_t seed, bool any) {
  std::mt19937 random(seed);
  std::vector<uint8_t> codes(count);
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(random());
    if (!any && code == 0x80) {
      code = 0;
    }
  }
  return codes;
}

// Bitwise; which NaN it is may differ.
inline ::testing::AssertionResult same(double a, double b) {
  if (std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << a << " is not " << b;
}
inline ::testing::AssertionResult same(std::span<const float> a, std::span<const float> b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool equal = std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i]);
    if (!equal && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      return ::testing::AssertionFailure()
             << "at " << i << " of " << a.size() << ": " << a[i] << " is not " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// Calls check(table) for every instruction set of this machine but the reference.
template <class Check>
void for_each_set(Check check) {
  for (const Kernels* table : offered()) {
    if (table != &reference()) {
      SCOPED_TRACE(table->name);
      check(*table);
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
}

}  // namespace gradwire::compress::cpu
