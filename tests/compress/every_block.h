// One bucket of every kind of block, which four ranks can share; what its reducer says to arbitrary bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/reducer.h"

namespace gradwire::compress {

struct FuzzLayer {
  const char* codec;
  uint64_t elements;
  uint32_t steps_per_octave = 8;
  Rounding rounding = Rounding::kNearest;
};

// New ones go to the end: the fuzz targets' inputs name segments by number.
inline constexpr FuzzLayer kFuzzLayers[] = {
    {"laco", 3000}, {"none", 5},    {"l8", 4097},
    {"laco", 1},    {"lads", 9001}, {"lads", 1},
    {"laco", 2500}, {"none", 63},   {"fp16", 300},
    {"int8", 289},  {"int4", 33},   {"bf16", 100},
    {"onebit", 70}, {"topk", 3100}, {"dropping", 2300},
    {"sign", 500},  {"l8", 40, 16}, {"int8", 60, 8, Rounding::kStochastic}};

inline constexpr uint64_t kFuzzElements = [] {
  uint64_t elements = 0;
  for (const FuzzLayer& layer : kFuzzLayers) {
    elements += layer.elements;
  }
  return elements;
}();

BucketShape fuzz_shape();
std::vector<CodecSettings> fuzz_settings(bool warm);

struct FuzzVerdict {
  Code decode = Code::kOk;
  Code hop = Code::kOk;
};

// Hands the bytes to decode() and, unless they are empty, to hop().
FuzzVerdict fuzz_message(uint32_t chunk, uint32_t index, std::span<const std::byte> bytes);

}  // namespace gradwire::compress
