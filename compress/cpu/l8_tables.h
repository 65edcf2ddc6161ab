// Constants of the vectorised L8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "compress/l8.h"

namespace gradwire::compress::cpu {

// Below: the eight entries twice, so that they fill 16 lanes.
constexpr std::array<uint32_t, 16> twice(const std::array<uint32_t, 8>& words) {
  std::array<uint32_t, 16> filled{};
  for (size_t i = 0; i < filled.size(); ++i) {
    filled[i] = words[i % 8];
  }
  return filled;
}

// D's bits are (index << 20) + kDecodeWords[index mod 8]: the shift leaves the eighths in the mantissa's top
// bits, which the table takes away again.
constexpr std::array<uint32_t, 16> decode_words() {
  std::array<uint32_t, 8> words{};
  for (uint32_t j = 0; j < 8; ++j) {
    words[j] = l8::kMantissa[j] - (j << 20);
  }
  return twice(words);
}
inline constexpr std::array<uint32_t, 16> kDecodeWords = decode_words();

// The same indexed by the code, which is one less mod 8 than its index: scale and code only add multiples of
// 8 and 8 * scale - 119.
constexpr std::array<uint32_t, 16> code_words() {
  std::array<uint32_t, 8> words{};
  for (uint32_t j = 0; j < 8; ++j) {
    words[j] = kDecodeWords[(j + 1) % 8];
  }
  return twice(words);
}
inline constexpr std::array<uint32_t, 16> kCodeWords = code_words();

// The index of code 0 of a scale, where a float has it; scale >= 16.
constexpr uint32_t base_of(uint32_t scale) {
  return (8 * scale - 119) << 20;
}

// With this offset added, each eighth of the mantissa's range holds exactly one of those, so that a table of
// eight suffices where l8::kRound needs sixteen: the index is (shifted + kRoundWords[shifted >> 20 & 7])
// >> 20.
inline constexpr uint32_t kRoundOffset = 0x066666;
constexpr std::array<uint32_t, 16> round_words() {
  std::array<uint32_t, 8> words{};
  for (uint32_t j = 0; j < 8; ++j) {
    words[j] = ((j + 1) << 20) - l8::kRoundUpFrom[j] - kRoundOffset;
  }
  return twice(words);
}
inline constexpr std::array<uint32_t, 16> kRoundWords = round_words();

constexpr bool every_eighth_has_one_threshold() {
  for (uint32_t j = 0; j < 8; ++j) {
    if ((l8::kRoundUpFrom[j] + kRoundOffset) >> 20 != j ||
        l8::encode((100U << 23) + l8::kRoundUpFrom[j], 100) != 120 + j ||
        l8::encode((100U << 23) + l8::kRoundUpFrom[j] - 1, 100) != 119 + j) {
      return false;
    }
  }
  return true;
}
static_assert(every_eighth_has_one_threshold());

// The smallest magnitude bits that a block of this scale does not send as zero; scale >= 16.
constexpr uint32_t smallest_sent(uint32_t scale) {
  const uint32_t below = 8 * scale - 119;  // the index of code 0
  return (below >> 3 << 23) | l8::kRoundUpFrom[below & 7];
}
static_assert(l8::encode(smallest_sent(100), 100) == 1 && l8::encode(smallest_sent(100) - 1, 100) == 0);

// Of 16 bytes: the lower bytes of the eight words, then the upper ones.
alignas(16) inline constexpr std::array<uint8_t, 16> kUnpairBytes = {0, 2, 4, 6, 8, 10, 12, 14,
                                                                     1, 3, 5, 7, 9, 11, 13, 15};

// Words of four vectors that were packed within blocks of 16 bytes, in the vectors' order.
template <size_t kWords>
constexpr std::array<uint32_t, kWords> block_order() {
  std::array<uint32_t, kWords> order{};
  constexpr size_t kBlocks = kWords / 4;
  for (size_t vector = 0; vector < 4; ++vector) {
    for (size_t block = 0; block < kBlocks; ++block) {
      order[vector * kBlocks + block] = static_cast<uint32_t>(4 * block + vector);
    }
  }
  return order;
}
template <size_t kWords>
inline constexpr std::array<uint32_t, kWords> kBlockOrder = block_order<kWords>();

}  // namespace gradwire::compress::cpu
