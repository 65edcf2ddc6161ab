// The compact tables of a compressed bucket: its blocks in order, the sparse pieces and the sparse layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/codecs/codec.h"
#include "compress/geometry.h"
#include "compress/lads.h"
#include "compress/reducer.h"

namespace gradwire::compress {

inline constexpr uint32_t kNoPiece = UINT32_MAX;

// A raw entry holds all of a raw run that falls into its segment.
struct Block {
  uint64_t first = 0;  // within the bucket
  uint32_t elements = 0;
  uint32_t piece = kNoPiece;  // into BucketPlan::pieces, of sparse blocks
  uint16_t codec = 0;         // into BucketPlan::codecs; 0: raw
  bool keeps = true;          // what is not sent stays in the residual
  bool half = false;          // which lies in Residuals::halves
  float momentum = 0;
  double clip = 0;  // most of the L2 norm of what a node's gradient adds to the result; 0: any
  uint64_t at = 0;  // of its residual, of blocks that have a codec
};

// The part of a sparse layer inside one chunk.
struct SparsePiece {
  uint32_t layer = 0;  // into BucketPlan::layers
  uint64_t elements = 0;
  uint32_t first_block = 0;
  uint32_t blocks = 0;
};

struct SparseLayer {
  LayerControl control;
  Selection selection = Selection::kRms;
  ThresholdScope scope = ThresholdScope::kLayer;
  NormOf norm_of = NormOf::kSum;
  bool sparse_rows = false;
  uint64_t elements = 0;
  uint32_t residual_layer = 0;  // into BucketPlan::residual_layers
  uint32_t first_piece = 0;
  uint32_t pieces = 0;
};

// A layer of at least one element that has something to keep: a residual, or momentum, or both.
struct ResidualLayer {
  static constexpr uint32_t kNotSparse = UINT32_MAX;
  std::string name;
  uint64_t elements = 0;
  uint64_t first = 0;            // within the bucket
  uint32_t sparse = kNotSparse;  // into BucketPlan::layers
  uint64_t earlier = 0;          // operations committed in other buckets before
  bool residual = true;          // it is not sent exactly
  bool momentum = false;
  bool half = false;  // the residual is in Residuals::halves
  uint64_t at = 0;    // of the residual
};

// A layer of at least one element that is sent exactly.
struct ExactLayer {
  static constexpr uint32_t kKeepsNothing = UINT32_MAX;
  std::string name;
  uint64_t elements = 0;
  uint64_t first = 0;                       // within the bucket
  uint32_t residual_layer = kKeepsNothing;  // into BucketPlan::residual_layers: it has momentum
};

struct BucketPlan {
  uint64_t elements = 0;
  Geometry geometry;
  std::vector<Block> blocks;
  std::vector<SparsePiece> pieces;
  std::vector<SparseLayer> layers;
  std::vector<ResidualLayer> residual_layers;
  std::vector<ExactLayer> exact_layers;
  // Elements of Residuals. Where one layer's are in fp32, so are the zeros of layers that have none.
  uint64_t float_residuals = 0, half_residuals = 0;
  bool has_residual() const { return float_residuals + half_residuals > 0; }
  std::vector<std::unique_ptr<BlockCodec>> codecs;  // the first is null
  uint32_t largest_coded = 0;                       // elements of the largest block that has a codec
  uint32_t largest_fresh = 0;                       // of the largest whose gradient is gathered in scratch
  uint32_t largest_half = 0;                        // of the largest whose residual is in bf16
  bool has_momentum = false;
  uint32_t nodes = 1, node = 0;
  bool direct = false;   // shares go straight to the owner of their chunk
  bool tallies = false;  // one of them is a tally
  uint64_t wire_variant = 0;
};

// Samples of layers for a threshold: of each block one element in so many. At least kSampleStride, and so
// that there are no more of them than a commit can sort in passing; but where a block would have none at all,
// more.
inline constexpr uint64_t kMostSamples = 65536;
constexpr uint32_t sample_stride(uint64_t elements) {
  const uint64_t stride = (elements + kMostSamples - 1) / kMostSamples;
  return static_cast<uint32_t>(std::clamp<uint64_t>(stride, kSampleStride, kSparseRawBlock));
}
constexpr uint64_t most_samples(uint64_t elements) {
  return elements / sample_stride(elements);
}

// Refuses settings outside the ranges of CodecSettings, naming the layer.
Status check_settings(const BucketShape& shape, std::span<const CodecSettings> settings);

// Settings must have been checked.
BucketPlan make_plan(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements);

}  // namespace gradwire::compress
