// One row a codec. "none" comes first; the others in the order of the documentation.
#include <algorithm>
#include <array>

#include "compress/codecs/codec.h"
#include "compress/geometry.h"

namespace gradwire::compress {
namespace {

constexpr uint32_t kDense = 4096;
constexpr uint32_t kFloats = 4;      // a decoded block
constexpr uint32_t kPositions = 12;  // arrived, selected, and to select from
constexpr auto kSparse = static_cast<uint32_t>(kSparseRawBlock);
constexpr auto kSparse8 = static_cast<uint32_t>(kSparseL8Block);
constexpr auto kHop = CodecKind::kHop;
constexpr auto kAll = Selection::kAll;

template <uint32_t kBytes>
uint32_t always(const CodecSettings& /*settings*/) {
  return kBytes;
}

constexpr auto kTable = std::to_array<CodecRow>({
    {"none", kHop, kAll, "", false, static_cast<uint32_t>(kRawBlock), always<0>, nullptr},
    {"fp16", kHop, kAll, "", false, kDense, always<kFloats>, make_fp16},
    {"bf16", kHop, kAll, "", false, kDense, always<kFloats>, make_bf16},
    {"l8", kHop, kAll, "", true, static_cast<uint32_t>(kL8Block), l8_scratch, make_l8},
    {"int8", kHop, kAll, "", true, kDense, always<kFloats>, make_int8},
    {"int4", kHop, kAll, "", true, kDense, always<kFloats>, make_int4},
    {"onebit", kHop, kAll, "", false, kDense, always<kFloats>, make_onebit},
    {"sign", CodecKind::kTally, kAll, "", false, kDense, always<1>, make_sign},
    {"lads", kHop, Selection::kRms, "none", false, kSparse, always<kPositions>, make_sparse_raw},
    {"laco", kHop, Selection::kRms, "l8", false, kSparse8, always<kPositions + 1>, make_sparse_l8},
    {"topk", kHop, Selection::kTop, "l8", false, kSparse8, always<kPositions + 1>, make_sparse_l8},
    {"dropping", kHop, Selection::kSampled, "none", false, kSparse, always<kPositions>, make_sparse_raw},
});

}  // namespace

std::span<const CodecRow> codec_table() {
  return kTable;
}

const CodecRow* find_codec(std::string_view name) {
  const auto* const row = std::find_if(kTable.begin(), kTable.end(),
                                       [&](const CodecRow& candidate) { return candidate.name == name; });
  return row == kTable.end() ? nullptr : row;
}

std::string_view codec_of_layer(std::string_view codec, uint64_t dense_below, uint64_t elements) {
  const CodecRow& row = *find_codec(codec);
  return elements < dense_below && !row.small.empty() ? row.small : row.name;
}

std::span<const std::string_view> codec_names() {
  static constexpr auto names = [] {
    std::array<std::string_view, kTable.size()> all;
    std::transform(kTable.begin(), kTable.end(), all.begin(), [](const CodecRow& row) { return row.name; });
    return all;
  }();
  return names;
}

}  // namespace gradwire::compress
