#include "compress/block_l8.h"

#include "compress/accumulate.h"
#include "compress/l8.h"

namespace gradwire::compress {
Result<BlockOutcome> hop_l8(const BlockInput& input, std::byte* out, BlockRecord& record) {
  float* const sum = input.next;
  const uint32_t elements = input.elements;
  auto locals = input.locals;
  if (input.arrived != nullptr) {
    const std::byte* const block = input.arrived->take(l8_block_bytes(elements));
    if (block == nullptr) {
      return truncated("an L8 block");
    }
    l8::decode_add(as_codes(block + 1), elements, std::to_integer<uint32_t>(block[0]), input.residual, sum);
  } else if (!locals.empty()) {
    add(input.residual, static_cast<const float*>(locals[0]) + input.first, sum, elements);
    locals = locals.subspan(1);
  } else if (sum != input.residual) {
    std::copy_n(input.residual, elements, sum);
  }
  add_locals(locals, input.first, sum, elements);

  const uint32_t largest = max_magnitude(sum, elements);
  const uint32_t scale = l8::scale_of(largest);
  out[0] = static_cast<std::byte>(scale);
  l8::encode_block(sum, elements, scale, reinterpret_cast<uint8_t*>(out + 1));
  record.residual_sum = square_sum(sum, elements);
  record.sent = elements;

  BlockOutcome outcome;
  outcome.bytes = l8_block_bytes(elements);
  outcome.not_finite = largest >= l8::kInfinity;
  return outcome;
}

Status decode_l8(ByteReader& bytes, uint32_t elements, float factor, float* result) {
  const std::byte* const block = bytes.take(l8_block_bytes(elements));
  if (block == nullptr) {
    return truncated("an L8 block");
  }
  l8::decode_scaled(as_codes(block + 1), elements, std::to_integer<uint32_t>(block[0]), factor, result);
  return ok_status();
}

}  // namespace gradwire::compress
