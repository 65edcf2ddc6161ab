// A hop codec that sends every element, from a format: the frame of the sum, the flag and the residual.
//
// A format is a class with
//   static constexpr const char* kName           for sentences
//   size_t bytes(uint64_t n) const               of n elements, exactly
//   bool valid(const std::byte* block, size_t n) const            what the decoder needs to be sure of
//   void decode(const std::byte* block, size_t n, float* out) const
//   void encode(float* values, size_t n, uint32_t largest, const RandomBits& random, std::byte* block) const
// where encode() leaves values - D(block) in `values`, all of which are finite; `largest` holds the bits of
// the largest magnitude. Both see a whole block.
#pragma once

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "compress/accumulate.h"
#include "compress/codecs/codec.h"
#include "compress/codecs/random_bits.h"
#include "compress/l8.h"

namespace gradwire::compress {

// Builds S in input.next at a first hop.
inline void start_sum(const BlockInput& input) {
  if (!input.locals.empty()) {
    add(input.residual, static_cast<const float*>(input.locals[0]) + input.first, input.next, input.elements);
    add_locals(input.locals.subspan(1), input.first, input.next, input.elements);
  } else if (input.next != input.residual) {
    std::copy_n(input.residual, input.elements, input.next);
  }
}

// Blocks of one bucket and steps of one block draw other bits; so do the nodes, since their sums differ.
inline RandomBits random_bits(const BlockInput& input, uint32_t largest) {
  return RandomBits(scramble(input.stream + largest) ^ std::bit_cast<uint32_t>(input.next[0]));
}

template <typename Format>
class DenseCodec final : public BlockCodec {
 public:
  DenseCodec(Format format, const CodecUse& use) : format_(format), decoded_(use.largest) {}

  size_t max_bytes(uint64_t elements) const override { return format_.bytes(elements); }

  Result<BlockOutcome> hop(const BlockInput& input, std::byte* out, BlockRecord& record) override {
    const uint32_t elements = input.elements;
    float* const sum = input.next;
    if (input.arrived == nullptr) {
      start_sum(input);
    } else {
      GRADWIRE_RETURN_IF_ERROR(take(*input.arrived, elements, decoded_.data()));
      add(decoded_.data(), input.residual, sum, elements);
      add_locals(input.locals, input.first, sum, elements);
    }
    const uint32_t largest = max_magnitude(sum, elements);
    BlockOutcome outcome;
    outcome.not_finite = largest >= l8::kInfinity;
    if (outcome.not_finite) {
      std::fill_n(sum, elements, 0.0F);  // the operation has no result, and a format need not tell
    }
    const uint32_t finite = outcome.not_finite ? 0 : largest;
    format_.encode(sum, elements, finite, random_bits(input, finite), out);
    record.residual_sum = square_sum(sum, elements);
    record.sent = elements;
    outcome.bytes = format_.bytes(elements);
    return outcome;
  }

  Status decode(ByteReader& bytes, uint32_t elements, float factor, float* result) override {
    GRADWIRE_RETURN_IF_ERROR(take(bytes, elements, result));
    multiply(result, factor, result, elements);
    return ok_status();
  }

  uint64_t memory() const override { return decoded_.size() * sizeof(float); }

 private:
  Status take(ByteReader& bytes, uint32_t elements, float* to) {
    const std::byte* const block = bytes.take(format_.bytes(elements));
    if (block == nullptr) {
      return truncated(Format::kName);
    }
    if (!format_.valid(block, elements)) {
      return {Code::kCorrupt, std::string(Format::kName) + " has a scale or bits that no sender writes"};
    }
    format_.decode(block, elements, to);
    return ok_status();
  }

  const Format format_;
  std::vector<float> decoded_;  // what arrived: the residual may be where the sum goes
};

}  // namespace gradwire::compress
