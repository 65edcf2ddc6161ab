// Positions of a sparse block as one bit an element; see docs/wire-format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::compress::bitmap {

constexpr size_t bytes(uint32_t elements) {
  return (size_t{elements} + 7) / 8;
}

// `positions` increase and are below `elements`.
void write(std::span<const uint32_t> positions, uint32_t elements, std::byte* out);

// Reads the bytes(elements) at `from`. False unless exactly positions.size() bits are set, all below
// `elements`.
bool read(const std::byte* from, uint32_t elements, std::span<uint32_t> positions);

}  // namespace gradwire::compress::bitmap
