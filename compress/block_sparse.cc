#include "compress/block_sparse.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compress/accumulate.h"
#include "compress/bitmap.h"
#include "compress/cpu/fused.h"
#include "compress/elias_fano.h"
#include "compress/geometry.h"
#include "compress/l8.h"
#include "compress/select.h"

namespace gradwire::compress {
namespace {

constexpr uint32_t kTile = 2048;  // elements that stay in the first cache between passes; a multiple of 16

constexpr std::byte mode_byte(Layout layout, Values values) {
  return static_cast<std::byte>(static_cast<unsigned>(layout) | static_cast<unsigned>(values) << 4);
}

uint32_t count_touched(const float* values, uint32_t elements) {
  uint32_t touched = 0;
  for (uint32_t i = 0; i < elements; ++i) {
    touched += values[i] != 0 ? 1 : 0;
  }
  return touched;
}

}  // namespace

SparseCodec::SparseCodec(Values values, const CodecUse& use)
    : values_(values),
      positions_(use.largest),
      arrived_(use.largest),
      scratch_(use.largest),
      codes_(values == Values::kL8 ? use.largest : 0) {}

// The threshold that is known before S is; infinity's where it is not, or nothing is to be selected.
uint32_t SparseCodec::early_threshold(const SparseRule& rule) {
  if (rule.dense) {
    return l8::kInfinity;
  }
  if (rule.threshold > 0) {
    return rule.threshold;
  }
  return rule.alpha == 0 || rule.mean_square > 0 ? threshold_bits(rule.alpha * std::sqrt(rule.mean_square))
                                                 : l8::kInfinity;
}

// S += D of `count` values from `first` on.
void SparseCodec::add_arrived(const Parsed& arrived, uint32_t first, uint32_t count, float* sum) const {
  const uint32_t* const positions = arrived_.data() + first;
  if (values_ == Values::kL8) {
    cpu::add_codes(positions, as_codes(arrived.data) + first, count, arrived.scale, sum);
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    float& element = sum[positions[i]];
    element = load<float>(arrived.data + size_t{4} * (first + i)) + element;
  }
}

// Builds S in input.next, tile by tile, and selects what reaches `threshold`.
SparseCodec::Sum SparseCodec::accumulate(const Parsed* arrived, const BlockInput& input, uint32_t threshold) {
  cpu::BlockScan scan(positions_.data());
  uint32_t next = 0;
  for (uint32_t begin = 0; begin < input.elements; begin += kTile) {
    const uint32_t count = std::min(kTile, input.elements - begin);
    const float* const residual = input.residual + begin;
    float* const sum = input.next + begin;
    if (arrived != nullptr && arrived->layout == Layout::kDense && values_ == Values::kL8) {
      l8::decode_add(as_codes(arrived->data) + begin, count, arrived->scale, residual, sum);
    } else if (arrived != nullptr && arrived->layout == Layout::kDense) {
      add_bytes(arrived->data + size_t{4} * begin, residual, sum, count);
    } else if (arrived != nullptr) {
      add_zero(residual, sum, count);
      const auto from = arrived_.begin() + next;
      const auto here = static_cast<uint32_t>(
          std::lower_bound(from, arrived_.begin() + arrived->count, begin + count) - from);
      add_arrived(*arrived, next, here, input.next);
      next += here;
    }
    scan.take({.base = arrived == nullptr ? residual : sum,
               .locals = input.locals,
               .first = input.first + begin,
               .count = count,
               .sum = sum,
               .threshold = threshold,
               .position = begin});
  }
  return {scan.squares(), scan.selected()};
}

size_t SparseCodec::encode_dense(float* sum, uint32_t elements, std::byte* out) {
  out[0] = mode_byte(Layout::kDense, values_);
  if (values_ == Values::kRaw) {
    std::memcpy(out + 1, sum, size_t{4} * elements);
    std::fill_n(sum, elements, 0.0F);
  } else {
    const uint32_t scale = l8::scale_of(max_magnitude(sum, elements));
    out[1] = static_cast<std::byte>(scale);
    l8::encode_block(sum, elements, scale, reinterpret_cast<uint8_t*>(out + 2));
  }
  return sparse_block_bytes(values_, elements);
}

// The codes of the selected elements. Those too small for the block's scale would be sent as zeros; they stay
// in the residual instead.
uint32_t SparseCodec::encode_codes(uint32_t count, uint32_t scale, const float* sum) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = positions_[i];
    const uint8_t code = l8::encode(std::bit_cast<uint32_t>(sum[position]), scale);
    positions_[kept] = position;
    codes_[kept] = code;
    kept += l8::decode(code, scale) != 0 ? 1 : 0;
  }
  return kept;
}

size_t SparseCodec::encode_positions(const Form& form, uint32_t scale, uint32_t count, float* sum,
                                     uint32_t elements, std::byte* out) {
  const std::span<const uint32_t> positions(positions_.data(), count);
  std::byte* next = out;
  const uint32_t values = form.packed ? kPackedMode : static_cast<uint32_t>(values_);
  *next++ = static_cast<std::byte>(static_cast<uint32_t>(form.layout) | values << 4);
  if (values_ == Values::kL8) {
    *next++ = static_cast<std::byte>(scale);
  }
  if (form.layout == Layout::kEliasFano) {
    *next++ = static_cast<std::byte>(form.low);
  }
  store(next, static_cast<uint16_t>(count - 1));
  next += 2;
  if (form.packed) {
    *next++ = static_cast<std::byte>(form.packing.minimum);
    *next++ = static_cast<std::byte>(form.packing.width);
  }
  if (form.layout == Layout::kEliasFano) {
    elias_fano::write(positions, elements, form.low, next);
    next += elias_fano::bytes(elements, count, form.low);
  } else {
    bitmap::write(positions, elements, next);
    next += bitmap::bytes(elements);
  }
  return static_cast<size_t>(write_values(form, scale, positions, sum, next) - out);
}

// Leaves in S what the values did not say.
std::byte* SparseCodec::write_values(const Form& form, uint32_t scale, std::span<const uint32_t> positions,
                                     float* sum, std::byte* out) {
  if (values_ == Values::kRaw) {
    for (const uint32_t position : positions) {
      store(out, std::exchange(sum[position], 0.0F));
      out += 4;
    }
    return out;
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    sum[positions[i]] -= l8::decode_float(codes_[i], scale);
  }
  const std::span<const uint8_t> codes(codes_.data(), positions.size());
  if (form.packed) {
    packed_codes::pack(codes, form.packing, out);
    return out + packed_codes::bytes(codes.size(), form.packing.width);
  }
  std::memcpy(out, codes.data(), codes.size());
  return out + codes.size();
}

size_t SparseCodec::encode(const BlockInput& input, const Sum& scanned, std::byte* out, uint32_t& sent) {
  const SparseRule& rule = *input.rule;
  float* const sum = input.next;
  const uint32_t elements = input.elements;
  sent = elements;
  if (rule.dense) {
    return encode_dense(sum, elements, out);
  }
  uint32_t count = scanned.selected;
  if (rule.threshold == 0 && rule.alpha != 0 && !(rule.mean_square > 0)) {
    const uint32_t touched = rule.touched ? std::max(1U, count_touched(sum, elements)) : elements;
    count = select(sum, elements, threshold_bits(rule.alpha * std::sqrt(scanned.squares / touched)),
                   positions_.data());
  }
  if (count > rule.cap) {
    const std::span<uint32_t> positions(positions_.data(), count);
    count = select_again(sum, positions, raised_threshold(sum, positions, rule.cap, scratch_.data()));
  }
  uint32_t scale = 0;
  if (values_ == Values::kL8 && count > 0) {
    uint32_t largest = 0;
    for (uint32_t i = 0; i < count; ++i) {
      largest = std::max(largest, std::bit_cast<uint32_t>(sum[positions_[i]]) & 0x7fffffff);
    }
    scale = l8::scale_of(largest);
    count = encode_codes(count, scale, sum);
  }
  if (count == 0) {
    sent = 0;
    out[0] = std::byte{0};
    return 1;
  }
  Form form;
  size_t value_size = count * value_bytes(values_);
  if (values_ == Values::kL8) {
    form.packing = packed_codes::narrowest(std::span(codes_.data(), count));
    const size_t packed = kPackingBytes + packed_codes::bytes(count, form.packing.width);
    form.packed = packed < value_size;
    value_size = std::min(packed, value_size);
  }
  const size_t header = (values_ == Values::kL8 ? 2 : 1) + 2 + value_size;
  form.low = elias_fano::low_bits(elements, count);
  const size_t as_bitmap = header + bitmap::bytes(elements);
  const size_t as_elias_fano = header + 1 + elias_fano::bytes(elements, count, form.low);
  if (sparse_block_bytes(values_, elements) <= std::min(as_bitmap, as_elias_fano)) {
    return encode_dense(sum, elements, out);
  }
  sent = count;
  form.layout = as_bitmap <= as_elias_fano ? Layout::kBitmap : Layout::kEliasFano;
  return encode_positions(form, scale, count, sum, elements, out);
}

// Momentum that has been sent must not be sent again (Deep Gradient Compression's factor masking).
void SparseCodec::forget_sent(const BlockInput& input, uint32_t sent) const {
  if (sent == input.elements) {
    std::fill_n(input.velocity, sent, 0.0F);
    return;
  }
  for (uint32_t i = 0; i < sent; ++i) {
    input.velocity[positions_[i]] = 0;
  }
}

Result<BlockOutcome> SparseCodec::hop(const BlockInput& input, std::byte* out, BlockRecord& record) {
  Parsed arrived;
  if (input.arrived != nullptr) {
    GRADWIRE_RETURN_IF_ERROR(parse(*input.arrived, input.elements, arrived));
  }
  const Sum sum =
      accumulate(input.arrived != nullptr ? &arrived : nullptr, input, early_threshold(*input.rule));
  record.square_sum = sum.squares;
  const uint64_t phase = input.stream % input.sample_stride;
  for (size_t i = 0; i < input.samples.size(); ++i) {
    input.samples[i] = std::bit_cast<uint32_t>(input.next[i * input.sample_stride + phase]) & l8::kMagnitude;
  }
  if (input.rule->measure) {
    record.magnitude_sum = magnitude_sum(input.next, input.elements);
  }
  BlockOutcome outcome;
  outcome.not_finite = !std::isfinite(record.square_sum);
  outcome.bytes = encode(input, sum, out, record.sent);
  if (input.velocity != nullptr && !input.rule->dense) {
    forget_sent(input, record.sent);
  }
  record.residual_sum = square_sum(input.next, input.elements);
  return outcome;
}

std::unique_ptr<BlockCodec> make_sparse_raw(const CodecUse& use) {
  return std::make_unique<SparseCodec>(Values::kRaw, use);
}

std::unique_ptr<BlockCodec> make_sparse_l8(const CodecUse& use) {
  return std::make_unique<SparseCodec>(Values::kL8, use);
}

}  // namespace gradwire::compress
