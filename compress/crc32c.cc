#include "compress/crc32c.h"

#include <array>

#include "compress/bytes.h"

namespace gradwire::compress {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr size_t kStep = 8;  // bytes at a time

using Tables = std::array<std::array<uint32_t, 256>, kStep>;

// tables[n][b]: what the byte b adds when n more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (size_t n = 1; n < kStep; ++n) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[n - 1][byte];
      tables[n][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  size_t at = 0;
  for (; at + kStep <= bytes.size(); at += kStep) {
    const uint64_t word = load<uint64_t>(bytes.data() + at) ^ crc;
    crc = 0;
    for (size_t n = 0; n < kStep; ++n) {
      crc ^= kTables[kStep - 1 - n][(word >> (8 * n)) & 0xff];
    }
  }
  for (; at < bytes.size(); ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(bytes[at])) & 0xff];
  }
  return ~crc;
}

}  // namespace gradwire::compress
