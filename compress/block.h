// What the block codecs share: the operands of a hop over one block, and what a hop reports about it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "compress/bytes.h"
#include "config/base/result.h"

namespace gradwire::compress {

// What a sparse block's selection goes by.
struct SparseRule {
  bool dense = false;      // send every element
  double alpha = 0;        // threshold in units of the root mean square; 0: all but zeros
  double mean_square = 0;  // of this operation's scale; not above 0: the block's own
  uint32_t threshold = 0;  // magnitude bits, instead of alpha; 0: alpha's
  uint32_t cap = 1;        // most elements of the block
  bool measure = false;    // the magnitudes of S are to be summed
  bool touched = false;    // the block's own mean square is that of the elements which are not zero
};

inline constexpr uint32_t kSampleStride = 16;  // elements of a block to one sample, at least

// One block of a hop. The sum is built in `next`, which is private memory and becomes the new residual.
struct BlockInput {
  ByteReader* arrived = nullptr;    // null at the first hop; a codec takes its block's bytes
  const float* residual = nullptr;  // already at this operation's scale; may be `next`
  std::span<const void* const> locals;
  uint64_t first = 0;  // of the block, within the bucket
  uint32_t elements = 0;
  float* next = nullptr;
  const SparseRule* rule = nullptr;  // of sparse codecs
  uint64_t stream = 0;               // other blocks and operations have others: for random rounding
  // Of the block: sparse codecs zero it where they send, unless they are to send all. May be null.
  float* velocity = nullptr;
  // Sparse codecs put magnitude bits of S in, one every sample_stride elements.
  std::span<uint32_t> samples{};
  uint32_t sample_stride = kSampleStride;
};

struct BlockRecord {
  double square_sum = 0;     // of S
  double fresh_squares = 0;  // of the gradient, where its norm is wanted
  double magnitude_sum = 0;  // of S, in operations that are observed for calibration
  double residual_sum = 0;   // squares of e'
  uint32_t sent = 0;         // elements
  uint32_t bytes = 0;        // of the encoded block
};

struct BlockOutcome {
  size_t bytes = 0;
  bool not_finite = false;
};

inline Status truncated(const char* what) {
  return {Code::kCorrupt,
          std::string("a message ends inside ") + what + "; its sender disagrees on the layers"};
}

// At the end of `what`, a segment or a share of one.
inline Status all_read(const ByteReader& bytes, const char* what) {
  return bytes.left() == 0
             ? ok_status()
             : Status(Code::kCorrupt, std::string(what) + " came with " + std::to_string(bytes.left()) +
                                          " bytes behind its last block; its sender disagrees "
                                          "on the layers");
}

}  // namespace gradwire::compress
