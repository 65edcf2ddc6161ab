// One bucket of every kind of block, which four ranks can share; what its reducer says to arbitrary bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/reducer.h"

namespace gradwire::compress {

inline constexpr uint64_t kFuzzElements =
    3000 + 5 + 4097 + 1 + 9001 + 1 + 2500 + 63 + 300 + 289 + 33 + 100 + 70 + 3100 + 2300 + 500 + 40 + 60;

BucketShape fuzz_shape();
std::vector<CodecSettings> fuzz_settings(bool warm);

struct FuzzVerdict {
  Code decode = Code::kOk;
  Code hop = Code::kOk;
};

// Hands the bytes to decode() and, unless they are empty, to hop().
FuzzVerdict fuzz_message(uint32_t chunk, uint32_t index, std::span<const std::byte> bytes);

}  // namespace gradwire::compress
