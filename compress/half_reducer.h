// Exact reduction of 16-bit floats: sums travel as fp32 and are rounded once.
#pragma once

#include <memory>

#include "compress/reducer.h"

namespace gradwire::compress {

// `dtype` is fp16 or bf16; `geometry` counts kHalfHopBytes an element.
std::unique_ptr<BucketReducer> make_half_reducer(Dtype dtype, Geometry geometry);

inline constexpr uint64_t kHalfHopBytes = 4;

}  // namespace gradwire::compress
