// The reading side of a sparse block, which trusts nothing.
#include <algorithm>

#include "compress/accumulate.h"
#include "compress/bitmap.h"
#include "compress/block_sparse.h"
#include "compress/elias_fano.h"

namespace gradwire::compress {

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
  const bool packed = values_ == Values::kL8 && code >> 4 == kPackedMode && !dense;
  if ((code >> 4 != static_cast<uint32_t>(values_) && !packed) ||
      !(dense || elias_fano || parsed.layout == Layout::kBitmap)) {
    return {Code::kCorrupt, "a sparse block has the unknown mode " + std::to_string(code) +
                                "; its sender disagrees on the layer's codec"};
  }
  const size_t scale_bytes = values_ == Values::kL8 ? 1 : 0;
  const size_t count_at = scale_bytes + (elias_fano ? 1 : 0);
  const size_t packing_at = count_at + (dense ? 0 : 2);
  const std::byte* const header = bytes.take(packing_at + (packed ? kPackingBytes : 0));
  if (header == nullptr) {
    return truncated("the header of a sparse block");
  }
  parsed.scale = values_ == Values::kL8 ? std::to_integer<uint32_t>(header[0]) : 0;
  parsed.count = elements;
  if (!dense) {
    const uint32_t low = elias_fano ? std::to_integer<uint32_t>(header[scale_bytes]) : 0;
    parsed.count = 1U + load<uint16_t>(header + count_at);
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
    const std::span<uint32_t> positions(arrived_.data(), parsed.count);
    const bool good =
        elias_fano ? elias_fano::read(map, elements, low, positions) : bitmap::read(map, elements, positions);
    if (!good) {
      return {Code::kCorrupt, "the positions of a sparse block are not " + std::to_string(parsed.count) +
                                  " increasing numbers below " + std::to_string(elements)};
    }
  }
  if (packed) {
    return unpack(bytes, header + packing_at, parsed);
  }
  parsed.data = bytes.take(parsed.count * value_bytes(values_));
  return parsed.data != nullptr ? ok_status() : truncated("the values of a sparse block");
}

Status SparseCodec::unpack(ByteReader& bytes, const std::byte* header, Parsed& parsed) {
  const packed_codes::Packing packing{std::to_integer<uint8_t>(header[0]),
                                      std::to_integer<uint8_t>(header[1])};
  if (packing.width > packed_codes::kMaxWidth) {
    return {Code::kCorrupt, "a sparse block claims codes of " + std::to_string(packing.width) +
                                " bits; at most " + std::to_string(packed_codes::kMaxWidth) +
                                " are possible"};
  }
  const std::byte* const from = bytes.take(packed_codes::bytes(parsed.count, packing.width));
  if (from == nullptr) {
    return truncated("the packed values of a sparse block");
  }
  if (!packed_codes::unpack(from, packing, std::span(codes_.data(), parsed.count))) {
    return {Code::kCorrupt, "the packed values of a sparse block are not what a sender writes"};
  }
  parsed.data = reinterpret_cast<const std::byte*>(codes_.data());
  return ok_status();
}

Status SparseCodec::add_decoded(ByteReader& bytes, uint32_t elements, float* /*scratch*/, float* sum) {
  Parsed block;
  GRADWIRE_RETURN_IF_ERROR(parse(bytes, elements, block));
  if (block.layout != Layout::kDense) {
    add_arrived(block, 0, block.count, sum);
  } else if (values_ == Values::kL8) {
    l8::decode_add(as_codes(block.data), elements, block.scale, sum, sum);
  } else {
    add_bytes(block.data, sum, sum, elements);
  }
  return ok_status();
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
    const float value = values_ == Values::kL8 ? l8::decode_float(as_codes(block.data)[i], block.scale)
                                               : load<float>(block.data + size_t{4} * i);
    result[arrived_[i]] = value * factor;
  }
  return ok_status();
}

}  // namespace gradwire::compress
