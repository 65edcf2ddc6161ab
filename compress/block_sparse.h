// Sparse blocks: positions and values of the elements that are sent, in the layout with the fewest bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/block.h"
#include "compress/codecs/codec.h"
#include "compress/l8.h"
#include "compress/packed_codes.h"

namespace gradwire::compress {

// Upper half of a sparse block's mode byte.
enum class Values : uint8_t { kRaw = 0, kL8 = 1 };
// Lower half.
enum class Layout : uint8_t { kEmpty = 0, kDense = 1, kBitmap = 2, kEliasFano = 3 };

inline constexpr uint32_t kPackedMode = 2;  // the upper half of the mode byte where L8 codes are packed
inline constexpr size_t kPackingBytes = 2;  // the smallest magnitude and the width

constexpr size_t value_bytes(Values values) {
  return values == Values::kL8 ? 1 : 4;
}

constexpr size_t sparse_block_bytes(Values values, uint64_t elements) {
  return values == Values::kL8 ? 2 + elements : 1 + 4 * elements;
}

class SparseCodec final : public BlockCodec {
 public:
  SparseCodec(Values values, const CodecUse& use);

  size_t max_bytes(uint64_t elements) const override { return sparse_block_bytes(values_, elements); }
  // Goes by input.rule.
  Result<BlockOutcome> hop(const BlockInput& input, std::byte* out, BlockRecord& record) override;
  Status decode(ByteReader& bytes, uint32_t elements, float factor, float* result) override;
  // Touches the elements that were sent only.
  Status add_decoded(ByteReader& bytes, uint32_t elements, float* scratch, float* sum) override;
  uint64_t memory() const override {
    return (positions_.size() + arrived_.size() + scratch_.size()) * sizeof(uint32_t) + codes_.size();
  }

 private:
  struct Parsed {
    Layout layout = Layout::kEmpty;
    uint32_t scale = 0;
    uint32_t count = 0;  // values
    const std::byte* data = nullptr;
  };

  struct Sum {
    double squares = 0;
    uint32_t selected = 0;  // in positions_
  };
  // How the selected elements are written.
  struct Form {
    Layout layout = Layout::kBitmap;
    uint32_t low = 0;  // of Elias-Fano
    bool packed = false;
    packed_codes::Packing packing{};
  };

  Status parse(ByteReader& bytes, uint32_t elements, Parsed& parsed);
  Status unpack(ByteReader& bytes, const std::byte* header, Parsed& parsed);
  static uint32_t early_threshold(const SparseRule& rule);
  Sum accumulate(const Parsed* arrived, const BlockInput& input, uint32_t threshold);
  void add_arrived(const Parsed& arrived, uint32_t first, uint32_t count, float* sum) const;
  size_t encode(const BlockInput& input, const Sum& scanned, std::byte* out, uint32_t& sent);
  size_t encode_dense(float* sum, uint32_t elements, std::byte* out);
  size_t encode_positions(const Form& form, uint32_t scale, uint32_t count, float* sum, uint32_t elements,
                          std::byte* out);
  std::byte* write_values(const Form& form, uint32_t scale, std::span<const uint32_t> positions, float* sum,
                          std::byte* out);
  void forget_sent(const BlockInput& input, uint32_t sent) const;
  uint32_t encode_codes(uint32_t count, uint32_t scale, const float* sum);

  const Values values_;
  std::vector<uint32_t> positions_;  // of the selection
  std::vector<uint32_t> arrived_;    // of the arrived block
  std::vector<uint32_t> scratch_;
  std::vector<uint8_t> codes_;  // of the arrived block where they were packed, then of the selection
};

}  // namespace gradwire::compress
