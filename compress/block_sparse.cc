#include "compress/block_sparse.h"

#include <algorithm>
#include <cmath>

#include "compress/accumulate.h"
#include "compress/bitmap.h"
#include "compress/codecs/magnitudes.h"
#include "compress/elias_fano.h"
#include "compress/geometry.h"
#include "compress/l8.h"
#include "compress/select.h"

namespace gradwire::compress {
namespace {

constexpr uint32_t kTile = 2048;  // elements that stay in the first cache between passes; a multiple of 16

constexpr size_t value_bytes(Values values) {
  return values == Values::kL8 ? 1 : 4;
}

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

float value_at(Values values, const std::byte* data, uint32_t scale, uint32_t i) {
  return values == Values::kL8 ? l8::decode_float(std::to_integer<uint8_t>(data[i]), scale)
                               : load<float>(data + size_t{4} * i);
}

}  // namespace

SparseCodec::SparseCodec(Values values)
    : values_(values),
      positions_(values == Values::kL8 ? kSparseL8Block : kSparseRawBlock),
      scratch_(positions_.size()) {}

Status SparseCodec::parse(ByteReader& bytes, uint32_t elements, Parsed& parsed) {
  const std::byte* const mode = bytes.take(1);
  if (mode == nullptr) {
    return truncated("a sparse block");
  }
  const auto code = std::to_integer<uint32_t>(*mode);
  parsed = Parsed{};
  if (code == 0) {
    return ok_status();
  }
  parsed.layout = static_cast<Layout>(code & 15);
  const bool dense = parsed.layout == Layout::kDense;
  const bool elias_fano = parsed.layout == Layout::kEliasFano;
  if (code >> 4 != static_cast<uint32_t>(values_) ||
      !(dense || elias_fano || parsed.layout == Layout::kBitmap)) {
    return {Code::kCorrupt, "a sparse block has the unknown mode " + std::to_string(code) +
                                "; its sender disagrees on the layer's codec"};
  }
  const size_t scale_bytes = values_ == Values::kL8 ? 1 : 0;
  const std::byte* const header = bytes.take(scale_bytes + (elias_fano ? 1 : 0) + (dense ? 0 : 2));
  if (header == nullptr) {
    return truncated("the header of a sparse block");
  }
  parsed.scale = values_ == Values::kL8 ? std::to_integer<uint32_t>(header[0]) : 0;
  parsed.count = elements;
  if (!dense) {
    const uint32_t low = elias_fano ? std::to_integer<uint32_t>(header[scale_bytes]) : 0;
    parsed.count = 1U + load<uint16_t>(header + scale_bytes + (elias_fano ? 1 : 0));
    if (low > elias_fano::kMaxLowBits || parsed.count > elements) {
      return {Code::kCorrupt, "a sparse block of " + std::to_string(elements) + " elements claims " +
                                  std::to_string(parsed.count) + " values with " + std::to_string(low) +
                                  " low bits"};
    }
    const std::byte* const map =
        bytes.take(elias_fano ? elias_fano::bytes(elements, parsed.count, low) : bitmap::bytes(elements));
    if (map == nullptr) {
      return truncated("the positions of a sparse block");
    }
    const std::span<uint32_t> positions(positions_.data(), parsed.count);
    const bool good =
        elias_fano ? elias_fano::read(map, elements, low, positions) : bitmap::read(map, elements, positions);
    if (!good) {
      return {Code::kCorrupt, "the positions of a sparse block are not " + std::to_string(parsed.count) +
                                  " increasing numbers below " + std::to_string(elements)};
    }
  }
  parsed.data = bytes.take(parsed.count * value_bytes(values_));
  return parsed.data != nullptr ? ok_status() : truncated("the values of a sparse block");
}

// Builds S in input.next, tile by tile; returns the sum of its squares.
double SparseCodec::accumulate(const Parsed* arrived, const BlockInput& input) {
  SquareSum squares;
  uint32_t next = 0;
  for (uint32_t begin = 0; begin < input.elements; begin += kTile) {
    const uint32_t count = std::min(kTile, input.elements - begin);
    const float* const residual = input.residual + begin;
    float* const sum = input.next + begin;
    auto locals = input.locals;
    if (arrived == nullptr) {
      if (!locals.empty()) {
        add(residual, static_cast<const float*>(locals[0]) + input.first + begin, sum, count);
        locals = locals.subspan(1);
      } else if (sum != residual) {
        std::copy_n(residual, count, sum);
      }
    } else if (arrived->layout == Layout::kDense && values_ == Values::kL8) {
      l8::decode_add(as_codes(arrived->data) + begin, count, arrived->scale, residual, sum);
    } else if (arrived->layout == Layout::kDense) {
      add_bytes(arrived->data + size_t{4} * begin, residual, sum, count);
    } else {
      add_zero(residual, sum, count);
      for (; next < arrived->count && positions_[next] < begin + count; ++next) {
        float& element = input.next[positions_[next]];
        element = value_at(values_, arrived->data, arrived->scale, next) + element;
      }
    }
    add_locals(locals, input.first + begin, sum, count);
    squares.add(sum, count);
  }
  return squares.total();
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

// Elements too small for the block's scale would be sent as zeros; they stay in the residual instead.
uint32_t SparseCodec::drop_vanishing(uint32_t count, uint32_t scale, const float* sum) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = positions_[i];
    const uint8_t code = l8::encode(std::bit_cast<uint32_t>(sum[position]), scale);
    positions_[kept] = position;
    kept += l8::decode(code, scale) != 0 ? 1 : 0;
  }
  return kept;
}

size_t SparseCodec::encode_positions(Layout layout, uint32_t low, uint32_t scale, uint32_t count, float* sum,
                                     uint32_t elements, std::byte* out) {
  const std::span<const uint32_t> positions(positions_.data(), count);
  std::byte* next = out;
  *next++ = mode_byte(layout, values_);
  if (values_ == Values::kL8) {
    *next++ = static_cast<std::byte>(scale);
  }
  if (layout == Layout::kEliasFano) {
    *next++ = static_cast<std::byte>(low);
  }
  store(next, static_cast<uint16_t>(count - 1));
  next += 2;
  if (layout == Layout::kEliasFano) {
    elias_fano::write(positions, elements, low, next);
    next += elias_fano::bytes(elements, count, low);
  } else {
    bitmap::write(positions, elements, next);
    next += bitmap::bytes(elements);
  }
  for (const uint32_t position : positions) {
    float& element = sum[position];
    if (values_ == Values::kL8) {
      const uint8_t code = l8::encode(std::bit_cast<uint32_t>(element), scale);
      *next++ = static_cast<std::byte>(code);
      element -= l8::decode_float(code, scale);
    } else {
      store(next, element);
      next += 4;
      element = 0;
    }
  }
  return static_cast<size_t>(next - out);
}

size_t SparseCodec::encode(const BlockInput& input, double square_sum, std::byte* out, uint32_t& sent) {
  const SparseRule& rule = *input.rule;
  float* const sum = input.next;
  const uint32_t elements = input.elements;
  sent = elements;
  if (rule.dense) {
    return encode_dense(sum, elements, out);
  }
  const uint32_t touched = rule.touched ? std::max(1U, count_touched(sum, elements)) : elements;
  const double mean_square = rule.mean_square > 0 ? rule.mean_square : square_sum / touched;
  const uint32_t threshold =
      rule.threshold > 0 ? rule.threshold : threshold_bits(rule.alpha * std::sqrt(mean_square));
  uint32_t count = select(sum, elements, threshold, positions_.data());
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
    count = drop_vanishing(count, scale, sum);
  }
  if (count == 0) {
    sent = 0;
    out[0] = std::byte{0};
    return 1;
  }
  const size_t header = (values_ == Values::kL8 ? 2 : 1) + 2 + count * value_bytes(values_);
  const uint32_t low = elias_fano::low_bits(elements, count);
  const size_t as_bitmap = header + bitmap::bytes(elements);
  const size_t as_elias_fano = header + 1 + elias_fano::bytes(elements, count, low);
  if (sparse_block_bytes(values_, elements) <= std::min(as_bitmap, as_elias_fano)) {
    return encode_dense(sum, elements, out);
  }
  sent = count;
  const Layout layout = as_bitmap <= as_elias_fano ? Layout::kBitmap : Layout::kEliasFano;
  return encode_positions(layout, low, scale, count, sum, elements, out);
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
  record.square_sum = accumulate(input.arrived != nullptr ? &arrived : nullptr, input);
  for (size_t i = 0; i < input.samples.size(); ++i) {
    input.samples[i] =
        std::bit_cast<uint32_t>(input.next[i * kSampleStride + input.stream % kSampleStride]) & 0x7fffffff;
  }
  if (input.rule->dense) {
    record.magnitude_sum = magnitude_sum(input.next, input.elements);
  }
  BlockOutcome outcome;
  outcome.not_finite = !std::isfinite(record.square_sum);
  outcome.bytes = encode(input, record.square_sum, out, record.sent);
  if (input.velocity != nullptr && !input.rule->dense) {
    forget_sent(input, record.sent);
  }
  record.residual_sum = square_sum(input.next, input.elements);
  return outcome;
}

Status SparseCodec::decode(ByteReader& bytes, uint32_t elements, float factor, float* result) {
  Parsed block;
  GRADWIRE_RETURN_IF_ERROR(parse(bytes, elements, block));
  if (block.layout == Layout::kDense) {
    if (values_ == Values::kL8) {
      l8::decode_scaled(as_codes(block.data), elements, block.scale, factor, result);
    } else {
      for (uint32_t i = 0; i < elements; ++i) {
        result[i] = load<float>(block.data + size_t{4} * i) * factor;
      }
    }
    return ok_status();
  }
  std::fill_n(result, elements, 0.0F);
  for (uint32_t i = 0; i < block.count; ++i) {
    result[positions_[i]] = value_at(values_, block.data, block.scale, i) * factor;
  }
  return ok_status();
}

std::unique_ptr<BlockCodec> make_sparse_raw(const CodecSettings&) {
  return std::make_unique<SparseCodec>(Values::kRaw);
}

std::unique_ptr<BlockCodec> make_sparse_l8(const CodecSettings&) {
  return std::make_unique<SparseCodec>(Values::kL8);
}

}  // namespace gradwire::compress
