// Random bits for stochastic rounding, from a counter: the same in every run and on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::compress {

// A bijection of 64-bit words that passes for random (the finaliser of splitmix64, Steele et al. 2014).
constexpr uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// 16 random bits of every element of a block. Blocks differ by their key.
class RandomBits {
 public:
  explicit RandomBits(uint64_t key) : key_(scramble(key + 0x9e3779b97f4a7c15U)) {}
  uint32_t operator()(size_t i) const {
    const uint64_t word = scramble(key_ + (i >> 2) * 0x9e3779b97f4a7c15U);
    return static_cast<uint32_t>(word >> (16 * (i & 3))) & 0xffff;
  }

 private:
  uint64_t key_;
};

}  // namespace gradwire::compress
