// Positions of a sparse block in Elias-Fano form: low bits packed, high bits as gaps in unary.
//
// P. Elias, "Efficient storage and retrieval by content and address of static files", JACM 1974; R. M. Fano,
// "On the number of bits required to implement an associative memory", 1971. See docs/wire-format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::compress::elias_fano {

inline constexpr uint32_t kMaxLowBits = 15;

// Low bits for `count` of `elements`: the rounded log2(ln 2 / density), 0 to 15; count >= 1.
uint32_t low_bits(uint32_t elements, uint32_t count);

constexpr size_t low_bytes(uint32_t count, uint32_t low) {
  return (size_t{count} * low + 7) / 8;
}
constexpr size_t upper_bits(uint32_t elements, uint32_t count, uint32_t low) {
  return size_t{count} + ((elements - 1) >> low);
}
constexpr size_t bytes(uint32_t elements, uint32_t count, uint32_t low) {
  return low_bytes(count, low) + (upper_bits(elements, count, low) + 7) / 8;
}

// `positions` increase and are below `elements`; writes bytes(...) bytes.
void write(std::span<const uint32_t> positions, uint32_t elements, uint32_t low, std::byte* out);

// Reads bytes(elements, positions.size(), low) bytes. False unless they hold exactly that many positions,
// strictly increasing and below `elements`, and all unused bits are zero.
bool read(const std::byte* from, uint32_t elements, uint32_t low, std::span<uint32_t> positions);

}  // namespace gradwire::compress::elias_fano
