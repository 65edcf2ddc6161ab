// Dense blocks of L8 codes behind one scale byte.
#pragma once

#include "compress/block.h"

namespace gradwire::compress {

constexpr size_t l8_block_bytes(uint64_t elements) {
  return 1 + elements;
}

// S = ((D(arrived) + e) + g1) + ...; writes Q(S) to `out` and leaves S - D(Q(S)) in input.next.
Result<BlockOutcome> hop_l8(const BlockInput& input, std::byte* out, BlockRecord& record);

// sum[i] += D(bytes)[i]
Status add_l8(ByteReader& bytes, uint32_t elements, float* sum);

Status decode_l8(ByteReader& bytes, uint32_t elements, float factor, float* result);

}  // namespace gradwire::compress
