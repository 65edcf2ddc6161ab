// Sparse blocks: positions and values of the elements that are sent, in the layout with the fewest bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/block.h"

namespace gradwire::compress {

// Upper half of a sparse block's mode byte.
enum class Values : uint8_t { kRaw = 0, kL8 = 1 };
// Lower half.
enum class Layout : uint8_t { kEmpty = 0, kDense = 1, kBitmap = 2, kEliasFano = 3 };

constexpr size_t sparse_block_bytes(Values values, uint64_t elements) {
  return values == Values::kL8 ? 2 + elements : 1 + 4 * elements;
}

// What a block's selection goes by.
struct SparseRule {
  bool dense = false;      // send every element
  double alpha = 0;        // threshold in units of the root mean square
  double mean_square = 0;  // of this operation's scale; not above 0: the block's own
  uint32_t cap = 1;        // most elements of the block
};

// One per reducer: memory for the positions of a block. Blocks are at most `max_block` elements.
class SparseCodec {
 public:
  explicit SparseCodec(uint32_t max_block);

  // S = ((D(arrived) + e) + g1) + ...; writes Q(S) to `out` and leaves S - D(Q(S)) in input.next.
  Result<BlockOutcome> hop(Values values, const BlockInput& input, const SparseRule& rule, std::byte* out,
                           BlockRecord& record);

  Status decode(Values values, ByteReader& bytes, uint32_t elements, float factor, float* result);

 private:
  struct Parsed {
    Layout layout = Layout::kEmpty;
    uint32_t scale = 0;
    uint32_t count = 0;  // values
    const std::byte* data = nullptr;
  };

  Status parse(Values values, ByteReader& bytes, uint32_t elements, Parsed& parsed);
  double accumulate(Values values, const Parsed* arrived, const BlockInput& input);
  size_t encode(Values values, const BlockInput& input, const SparseRule& rule, double square_sum,
                std::byte* out, uint32_t& sent);
  size_t encode_dense(Values values, float* sum, uint32_t elements, std::byte* out);
  size_t encode_positions(Values values, Layout layout, uint32_t low, uint32_t scale, uint32_t count,
                          float* sum, uint32_t elements, std::byte* out);
  uint32_t drop_vanishing(uint32_t count, uint32_t scale, const float* sum);

  std::vector<uint32_t> positions_;  // of the arrived block, then of the selection
  std::vector<uint32_t> scratch_;
};

}  // namespace gradwire::compress
