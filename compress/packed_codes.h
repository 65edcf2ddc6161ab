// The L8 codes of a sparse block's survivors in fewer bits: what lies just above a threshold spans few
// octaves.
//
// Frame of reference: the smallest magnitude (a code without its sign) is kept once, each code as what it
// exceeds that by, in `width` bits with the sign above them. Fields are width + 1 bits, the first in the
// lowest bits of the first byte; unused bits of the last byte are zero. Lossless for any codes; portable
// code, the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::compress::packed_codes {

struct Packing {
  uint8_t minimum = 0;  // 0 to 127
  uint8_t width = 7;    // bits of a magnitude, 0 to 7; at 7 nothing is saved
};

inline constexpr uint32_t kMaxWidth = 7;

constexpr size_t bytes(size_t count, uint32_t width) {
  return (count * (width + 1) + 7) / 8;
}

// The narrowest packing of `codes`.
Packing narrowest(std::span<const uint8_t> codes);

// Writes bytes(codes.size(), packing.width) bytes. Every magnitude must fit `packing`.
void pack(std::span<const uint8_t> codes, Packing packing, std::byte* out);

// Reads that many bytes. False if `packing` is out of range, a magnitude comes out above 127, or an unused
// bit is set; codes.size() and the bytes' presence are the caller's to check.
bool unpack(const std::byte* from, Packing packing, std::span<uint8_t> codes);

}  // namespace gradwire::compress::packed_codes
