// Random bits for stochastic rounding, from a counter: the same in every run and on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "config/base/scramble.h"

namespace gradwire::compress {

// 16 random bits of every element of a block. Blocks differ by their key.
class RandomBits {
 public:
  explicit RandomBits(uint64_t key) : key_(scramble(key + kGolden)) {}
  uint32_t operator()(size_t i) const {
    const uint64_t word = scramble(key_ + (i >> 2) * kGolden);
    return static_cast<uint32_t>(word >> (16 * (i & 3))) & 0xffff;
  }

 private:
  uint64_t key_;
};

}  // namespace gradwire::compress
