// What a trainer may ask of its daemon at most: the library refuses more before it asks, the daemon in any
// case.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::wire {

inline constexpr size_t kMaxNameBytes = 4096;                  // of a bucket, of a layer
inline constexpr size_t kMaxLayers = 300'000;                  // of a bucket
inline constexpr size_t kMaxLayerNameBytes = size_t{8} << 20;  // of a bucket's layers, together
inline constexpr uint64_t kMaxElements = uint64_t{1} << 40;    // of a bucket

}  // namespace gradwire::wire
