// What the block codecs share: the operands of a hop over one block, and what a hop reports about it.
#pragma once

#include <cstdint>
#include <span>

#include "compress/bytes.h"
#include "config/base/result.h"

namespace gradwire::compress {

// One block of a hop. The sum is built in `next`, which is private memory and becomes the new residual.
struct BlockInput {
  ByteReader* arrived = nullptr;    // null at the first hop; a codec takes its block's bytes
  const float* residual = nullptr;  // already at this operation's scale; may be `next`
  std::span<const void* const> locals;
  uint64_t first = 0;  // of the block, within the bucket
  uint32_t elements = 0;
  float* next = nullptr;
};

struct BlockRecord {
  double square_sum = 0;    // of S
  double residual_sum = 0;  // squares of e'
  uint32_t sent = 0;        // elements
};

struct BlockOutcome {
  size_t bytes = 0;
  bool not_finite = false;
};

inline Status truncated(const char* what) {
  return {Code::kCorrupt,
          std::string("a message ends inside ") + what + "; its sender disagrees on the layers"};
}

}  // namespace gradwire::compress
