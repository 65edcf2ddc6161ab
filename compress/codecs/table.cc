// One row a codec. "none" comes first; the others in the order of the documentation.
#include <algorithm>
#include <array>

#include "compress/codecs/codec.h"

namespace gradwire::compress {
namespace {

constexpr std::array<CodecRow, 12> kTable = {{
    {"none", CodecKind::kHop, Selection::kAll, "", false, "exact", nullptr},
    {"fp16", CodecKind::kHop, Selection::kAll, "", false, "16-bit floats at the block's own scale",
     make_fp16},
    {"bf16", CodecKind::kHop, Selection::kAll, "", false, "the upper 16 bits of a float", make_bf16},
    {"l8", CodecKind::kHop, Selection::kAll, "", true, "8 bits an element, logarithmic", make_l8},
    {"int8", CodecKind::kHop, Selection::kAll, "", true, "8 bits an element, linear in 256s", make_int8},
    {"int4", CodecKind::kHop, Selection::kAll, "", true, "4 bits an element, linear in 32s", make_int4},
    {"onebit", CodecKind::kHop, Selection::kAll, "", false, "signs and their mean magnitude", make_onebit},
    {"sign", CodecKind::kTally, Selection::kAll, "", false, "the majority of the nodes' signs", make_sign},
    {"lads", CodecKind::kHop, Selection::kRms, "none", false,
     "sparse, elements over a threshold of their layer", make_sparse_raw},
    {"laco", CodecKind::kHop, Selection::kRms, "l8", false, "lads with values in 8 bits", make_sparse_l8},
    {"topk", CodecKind::kHop, Selection::kTop, "l8", false,
     "sparse, the largest elements of every block, values in 8 bits", make_sparse_l8},
    {"dropping", CodecKind::kHop, Selection::kSampled, "none", false,
     "sparse, elements over a sampled quantile", make_sparse_raw},
}};

}  // namespace

std::span<const CodecRow> codec_table() {
  return kTable;
}

const CodecRow* find_codec(std::string_view name) {
  const auto* const row = std::find_if(kTable.begin(), kTable.end(),
                                       [&](const CodecRow& candidate) { return candidate.name == name; });
  return row == kTable.end() ? nullptr : row;
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
