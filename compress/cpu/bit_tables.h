// Tables over one byte of a bit string, and over eight bit fields.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace gradwire::compress::cpu {

using ByteTable = std::array<std::array<uint8_t, 8>, 256>;

constexpr std::array<uint8_t, 256> bit_counts() {
  std::array<uint8_t, 256> counts{};
  for (size_t byte = 0; byte < 256; ++byte) {
    counts[byte] = static_cast<uint8_t>(std::popcount(byte));
  }
  return counts;
}
// Set bits of a byte.
inline constexpr std::array<uint8_t, 256> kBitCount = bit_counts();

constexpr ByteTable set_bit_numbers() {
  ByteTable table{};
  for (size_t byte = 0; byte < 256; ++byte) {
    size_t next = 0;
    for (uint8_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) != 0) {
        table[byte][next++] = bit;
      }
    }
  }
  return table;
}
// Their numbers, increasing; zeros behind.
inline constexpr ByteTable kSetBits = set_bit_numbers();

// Where eight consecutive fields of a width up to 15 bits lie: four bytes for each, then a shift.
struct FieldTable {
  std::array<uint8_t, 32> bytes;
  std::array<uint32_t, 8> shifts;
};

constexpr std::array<FieldTable, 16> field_tables() {
  std::array<FieldTable, 16> tables{};
  for (uint32_t width = 0; width < 16; ++width) {
    for (uint32_t field = 0; field < 8; ++field) {
      const uint32_t first = field * width / 8;
      for (uint32_t byte = 0; byte < 4; ++byte) {
        // A field that ends before the 16 bytes do needs nothing beyond them.
        const uint32_t at = first + byte < 16 ? first + byte : 0x80;
        tables[width].bytes[4 * field + byte] = static_cast<uint8_t>(at);
      }
      tables[width].shifts[field] = field * width % 8;
    }
  }
  return tables;
}
inline constexpr std::array<FieldTable, 16> kFields = field_tables();

}  // namespace gradwire::compress::cpu
