#include "compress/block_l8.h"

#include "compress/cpu/kernels.h"
#include "compress/geometry.h"
#include "compress/l8.h"

namespace gradwire::compress {

static_assert(kL8Block <= cpu::kFusedBlock);

Result<BlockOutcome> hop_l8(const BlockInput& input, std::byte* out, BlockRecord& record) {
  const uint32_t elements = input.elements;
  cpu::L8Hop hop{.residual = input.residual,
                 .locals = input.locals,
                 .first = input.first,
                 .count = elements,
                 .codes = reinterpret_cast<uint8_t*>(out + 1),
                 .next = input.next};
  if (input.arrived != nullptr) {
    const std::byte* const block = input.arrived->take(l8_block_bytes(elements));
    if (block == nullptr) {
      return truncated("an L8 block");
    }
    hop.arrived = as_codes(block + 1);
    hop.arrived_scale = std::to_integer<uint32_t>(block[0]);
  }
  const cpu::L8HopSums sums = cpu::kernels().l8_hop(hop);
  out[0] = static_cast<std::byte>(l8::scale_of(sums.largest));
  record.residual_sum = sums.rest;
  record.sent = elements;

  BlockOutcome outcome;
  outcome.bytes = l8_block_bytes(elements);
  outcome.not_finite = sums.largest >= l8::kInfinity;
  return outcome;
}

Status add_l8(ByteReader& bytes, uint32_t elements, float* sum) {
  const std::byte* const block = bytes.take(l8_block_bytes(elements));
  if (block == nullptr) {
    return truncated("an L8 block");
  }
  l8::decode_add(as_codes(block + 1), elements, std::to_integer<uint32_t>(block[0]), sum, sum);
  return ok_status();
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
