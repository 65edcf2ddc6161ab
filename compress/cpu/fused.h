// Several steps of a codec in one pass over memory.
//
// A hop over a dense L8 block is kernels().l8_hop(); what follows is for sparse blocks. Nothing here
// allocates; everything is reentrant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "compress/cpu/kernels.h"

namespace gradwire::compress::cpu {

// The scan of a sparse block: S = (base + g1) + ..., its squares, and the positions of what reaches a
// threshold. A whole block at once where nothing arrived or `base` holds D(arrived) + residual already;
// otherwise tile by tile, so that each tile is prepared, scanned and left while it is in the first cache:
//
//   BlockScan scan(positions);
//   for each tile: prepare sum (add_zero, add_codes); scan.take({.base = sum, .locals = ..., .sum = sum,
//   ...});
//
// Every tile but the last has a multiple of 16 elements. `positions` has room for as many as the block has
// elements. The threshold comes from the norm of the step before; where it must come from S itself, scan with
// infinity's bits (only what is not finite is selected), then select() over S takes the second look.
class BlockScan {
 public:
  explicit BlockScan(uint32_t* positions) : positions_(positions) {}

  void take(const Scan& tile) { selected_ += kernels().scan(tile, partials_.data(), positions_ + selected_); }

  uint32_t selected() const { return selected_; }
  // Not finite if any element of S is not.
  double squares() const;

 private:
  uint32_t* positions_;
  uint32_t selected_ = 0;
  std::array<double, kPartials> partials_{};
};

// out[position] = D(code) + out[position] for each of `count` positions, which are distinct: a sparse block's
// addition to a block that holds the residual.
void add_codes(const uint32_t* positions, const uint8_t* codes, size_t count, uint32_t scale, float* out);

}  // namespace gradwire::compress::cpu
