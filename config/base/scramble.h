// Random numbers from a counter: the same in every run and on every machine.
//
// scramble(seed + n * kGolden) for n = 1, 2, ... is SplitMix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", OOPSLA 2014); any other distinct arguments do as well.
#pragma once

#include <cstdint>

namespace gradwire {

inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15U;

// A bijection of 64-bit words that passes for random.
constexpr uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace gradwire
