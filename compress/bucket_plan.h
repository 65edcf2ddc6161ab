// The compact tables of a compressed bucket: its blocks in order, the sparse pieces and the sparse layers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compress/geometry.h"
#include "compress/lads.h"
#include "compress/reducer.h"

namespace gradwire::compress {

enum class BlockKind : uint8_t { kRaw, kL8, kSparseRaw, kSparseL8 };

constexpr bool is_sparse(BlockKind kind) {
  return kind == BlockKind::kSparseRaw || kind == BlockKind::kSparseL8;
}

// A raw entry holds all of a raw run that falls into its segment.
struct Block {
  uint64_t first = 0;  // within the bucket
  uint32_t elements = 0;
  uint32_t piece = 0;  // into BucketPlan::pieces, sparse blocks only
  BlockKind kind = BlockKind::kRaw;
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
  uint64_t elements = 0;
  uint32_t residual_layer = 0;  // into BucketPlan::residual_layers
  uint32_t first_piece = 0;
  uint32_t pieces = 0;
};

// A layer of at least one element that is not sent exactly.
struct ResidualLayer {
  static constexpr uint32_t kNotSparse = UINT32_MAX;
  std::string name;
  uint64_t elements = 0;
  uint64_t first = 0;            // within the bucket
  uint32_t sparse = kNotSparse;  // into BucketPlan::layers
  uint64_t earlier = 0;          // operations committed in other buckets before
};

struct BucketPlan {
  uint64_t elements = 0;
  Geometry geometry;
  std::vector<Block> blocks;
  std::vector<SparsePiece> pieces;
  std::vector<SparseLayer> layers;
  std::vector<ResidualLayer> residual_layers;
  bool has_residual = false;
  uint32_t max_sparse_block = 0;  // elements; 0 without sparse layers
};

// Refuses settings outside the ranges of CodecSettings, naming the layer.
Status check_settings(const BucketShape& shape, std::span<const CodecSettings> settings);

// Settings must have been checked.
BucketPlan make_plan(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements);

}  // namespace gradwire::compress
