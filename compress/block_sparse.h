// Sparse blocks: positions and values of the elements that are sent, in the layout with the fewest bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/block.h"
#include "compress/codecs/codec.h"

namespace gradwire::compress {

// Upper half of a sparse block's mode byte.
enum class Values : uint8_t { kRaw = 0, kL8 = 1 };
// Lower half.
enum class Layout : uint8_t { kEmpty = 0, kDense = 1, kBitmap = 2, kEliasFano = 3 };

constexpr size_t sparse_block_bytes(Values values, uint64_t elements) {
  return values == Values::kL8 ? 2 + elements : 1 + 4 * elements;
}

class SparseCodec final : public BlockCodec {
 public:
  explicit SparseCodec(Values values);

  uint32_t block_elements() const override { return static_cast<uint32_t>(positions_.size()); }
  size_t max_bytes(uint64_t elements) const override { return sparse_block_bytes(values_, elements); }
  // Goes by input.rule.
  Result<BlockOutcome> hop(const BlockInput& input, std::byte* out, BlockRecord& record) override;
  Status decode(ByteReader& bytes, uint32_t elements, float factor, float* result) override;

 private:
  struct Parsed {
    Layout layout = Layout::kEmpty;
    uint32_t scale = 0;
    uint32_t count = 0;  // values
    const std::byte* data = nullptr;
  };

  Status parse(ByteReader& bytes, uint32_t elements, Parsed& parsed);
  double accumulate(const Parsed* arrived, const BlockInput& input);
  size_t encode(const BlockInput& input, double square_sum, std::byte* out, uint32_t& sent);
  size_t encode_dense(float* sum, uint32_t elements, std::byte* out);
  size_t encode_positions(Layout layout, uint32_t low, uint32_t scale, uint32_t count, float* sum,
                          uint32_t elements, std::byte* out);
  void forget_sent(const BlockInput& input, uint32_t sent) const;
  uint32_t drop_vanishing(uint32_t count, uint32_t scale, const float* sum);

  const Values values_;
  std::vector<uint32_t> positions_;  // of the arrived block, then of the selection
  std::vector<uint32_t> scratch_;
};

}  // namespace gradwire::compress
