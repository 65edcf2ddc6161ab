#include "compress/packed_codes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "compress/words.h"

namespace gradwire::compress::packed_codes {
namespace {

// Eight codes are the bytes of one word.
constexpr uint64_t kOnes = 0x0101010101010101;

// The low `field` bits of every byte, side by side: neighbours merge in three steps.
inline uint64_t gather(uint64_t bytes, uint32_t field) {
  bytes = (bytes & 0x00ff00ff00ff00ff) | (bytes & 0xff00ff00ff00ff00) >> (8 - field);
  bytes = (bytes & 0x0000ffff0000ffff) | (bytes & 0xffff0000ffff0000) >> (16 - 2 * field);
  return (bytes & 0xffffffff) | (bytes >> 32) << (4 * field);
}

// The reverse; bits above the eight fields are ignored.
inline uint64_t scatter(uint64_t fields, uint32_t field) {
  const uint64_t ones = (uint64_t{1} << field) - 1;
  const uint64_t pairs = (uint64_t{1} << (2 * field)) - 1;
  const uint64_t fours = (uint64_t{1} << (4 * field)) - 1;
  uint64_t bytes = (fields & fours) | (fields >> (4 * field) & fours) << 32;
  bytes = (bytes & pairs * 0x0000000100000001) | (bytes & (pairs << (2 * field)) * 0x0000000100000001)
                                                     << (16 - 2 * field);
  return (bytes & ones * 0x0001000100010001) | (bytes & (ones << field) * 0x0001000100010001) << (8 - field);
}

}  // namespace

Packing narrowest(std::span<const uint8_t> codes) {
  uint8_t smallest = 127;
  uint8_t largest = 0;
  for (const uint8_t code : codes) {
    const uint8_t magnitude = code & 127;
    smallest = std::min(smallest, magnitude);
    largest = std::max(largest, magnitude);
  }
  if (codes.empty()) {
    return {0, 0};
  }
  return {smallest, static_cast<uint8_t>(std::bit_width(static_cast<unsigned>(largest - smallest)))};
}

void pack(std::span<const uint8_t> codes, Packing packing, std::byte* out) {
  const uint32_t field = packing.width + 1U;
  size_t left = bytes(codes.size(), packing.width);
  for (size_t i = 0; i < codes.size(); i += 8) {
    uint64_t word = packing.minimum * kOnes;  // fills up the last eight
    if (codes.size() - i >= 8) {
      std::memcpy(&word, codes.data() + i, 8);
    } else {
      std::memcpy(&word, codes.data() + i, codes.size() - i);
    }
    const uint64_t signs = word >> 7 & kOnes;
    const uint64_t excess = (word & 127 * kOnes) - packing.minimum * kOnes;
    const uint64_t fields = gather(excess | signs << packing.width, field);
    std::memcpy(out, &fields,
                left >= 8 ? 8 : std::min<size_t>(left, field));  // the next eight overwrite the rest
    const size_t step = std::min<size_t>(left, field);
    out += step;
    left -= step;
  }
}

bool unpack(const std::byte* from, Packing packing, std::span<uint8_t> codes) {
  if (packing.minimum > 127 || packing.width > kMaxWidth) {
    return false;
  }
  const uint32_t field = packing.width + 1U;
  const size_t size = bytes(codes.size(), packing.width);
  if (!padding_is_zero(from, codes.size() * field)) {
    return false;
  }
  const uint64_t low = ((uint64_t{1} << packing.width) - 1) * kOnes;
  uint64_t beyond = 0;
  for (size_t i = 0, at = 0; i < codes.size(); i += 8, at += field) {
    const uint64_t fields = scatter(load_word(from, at, size), field);
    const uint64_t magnitudes = (fields & low) + packing.minimum * kOnes;
    beyond |= magnitudes & 128 * kOnes;
    const uint64_t word = magnitudes | (fields >> packing.width & kOnes) << 7;
    std::memcpy(codes.data() + i, &word, std::min<size_t>(8, codes.size() - i));
  }
  return beyond == 0;
}

}  // namespace gradwire::compress::packed_codes
