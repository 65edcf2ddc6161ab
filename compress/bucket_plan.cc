#include "compress/bucket_plan.h"

#include <algorithm>
#include <utility>

#include "compress/block_l8.h"
#include "compress/block_sparse.h"

namespace gradwire::compress {
namespace {

BlockKind kind_of(const Layer& layer, const CodecSettings& settings) {
  const bool small = layer.elements < settings.dense_below;
  if (settings.codec == "l8") {
    return BlockKind::kL8;
  }
  if (settings.codec == "lads") {
    return small ? BlockKind::kRaw : BlockKind::kSparseRaw;
  }
  if (settings.codec == "laco") {
    return small ? BlockKind::kL8 : BlockKind::kSparseL8;
  }
  return BlockKind::kRaw;
}

constexpr uint64_t block_elements(BlockKind kind) {
  switch (kind) {
    case BlockKind::kL8:
      return kL8Block;
    case BlockKind::kSparseRaw:
      return kSparseRawBlock;
    case BlockKind::kSparseL8:
      return kSparseL8Block;
    case BlockKind::kRaw:
      break;
  }
  return kRawBlock;
}

constexpr uint64_t most_bytes(BlockKind kind, uint64_t elements) {
  switch (kind) {
    case BlockKind::kL8:
      return l8_block_bytes(elements);
    case BlockKind::kSparseRaw:
      return sparse_block_bytes(Values::kRaw, elements);
    case BlockKind::kSparseL8:
      return sparse_block_bytes(Values::kL8, elements);
    case BlockKind::kRaw:
      break;
  }
  return elements * sizeof(float);
}

Status refuse(const Layer& layer, const std::string& what) {
  return {Code::kInvalidArgument, "layer " + layer.name + ": " + what};
}

class Planner {
 public:
  Planner(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements)
      : shape_(shape), settings_(settings), builder_(shape.max_message_bytes) {
    plan_.elements = elements;
  }

  BucketPlan plan() {
    find_sparse_layers();
    find_residual_layers();
    uint64_t layer_begin = 0;
    size_t layer = 0;
    for (uint32_t chunk = 0; chunk < shape_.nodes; ++chunk) {
      at_ = chunk_begin(plan_.elements, shape_.nodes, chunk);
      const uint64_t chunk_end = chunk_begin(plan_.elements, shape_.nodes, chunk + 1);
      builder_.start_chunk(at_);
      while (at_ + raw_run_ < chunk_end) {
        const uint64_t layer_end = layer_begin + shape_.layers[layer].elements;
        const uint64_t begin = at_ + raw_run_;
        const uint64_t end = std::min(layer_end, chunk_end);
        if (begin < end) {
          add_piece(layer, end - begin);
        }
        if (end == layer_end) {
          layer_begin = layer_end;
          ++layer;
        }
      }
      flush_raw();
    }
    plan_.geometry = builder_.finish();
    plan_.blocks.shrink_to_fit();
    return std::move(plan_);
  }

 private:
  void find_residual_layers() {
    uint64_t first = 0;
    for (size_t i = 0; i < shape_.layers.size(); ++i) {
      const Layer& layer = shape_.layers[i];
      const BlockKind kind = kind_of(layer, settings_[i]);
      if (kind != BlockKind::kRaw && layer.elements > 0) {
        const uint32_t sparse = is_sparse(kind) ? sparse_of_[i] : ResidualLayer::kNotSparse;
        if (is_sparse(kind)) {
          plan_.layers[sparse].residual_layer = static_cast<uint32_t>(plan_.residual_layers.size());
        }
        plan_.residual_layers.push_back({layer.name, layer.elements, first, sparse, 0});
      }
      first += layer.elements;
    }
    plan_.has_residual = !plan_.residual_layers.empty();
  }

  // The first and the last of more than two large layers are sent at a higher density.
  void find_sparse_layers() {
    std::vector<size_t> large;
    for (size_t i = 0; i < shape_.layers.size(); ++i) {
      const BlockKind kind = kind_of(shape_.layers[i], settings_[i]);
      if (is_sparse(kind) && shape_.layers[i].elements > 0) {
        large.push_back(i);
        plan_.max_sparse_block =
            std::max(plan_.max_sparse_block, static_cast<uint32_t>(block_elements(kind)));
      }
    }
    sparse_of_.assign(shape_.layers.size(), 0);
    for (size_t n = 0; n < large.size(); ++n) {
      const size_t i = large[n];
      const bool edge = large.size() > 2 && (n == 0 || n + 1 == large.size());
      const double factor = edge ? settings_[i].edge_density_factor : 1.0;
      const double target = std::min(1.0, settings_[i].density * factor);
      sparse_of_[i] = static_cast<uint32_t>(plan_.layers.size());
      plan_.layers.push_back({LayerControl(settings_[i], target), shape_.layers[i].elements, 0, 0, 0});
    }
  }

  void add_piece(size_t layer, uint64_t elements) {
    const BlockKind kind = kind_of(shape_.layers[layer], settings_[layer]);
    if (kind == BlockKind::kRaw) {
      raw_run_ += elements;
      return;
    }
    flush_raw();
    if (is_sparse(kind)) {
      SparseLayer& sparse = plan_.layers[sparse_of_[layer]];
      if (sparse.pieces++ == 0) {
        sparse.first_piece = static_cast<uint32_t>(plan_.pieces.size());
      }
      plan_.pieces.push_back({sparse_of_[layer], elements, static_cast<uint32_t>(plan_.blocks.size()), 0});
    }
    const uint64_t step = block_elements(kind);
    for (uint64_t done = 0; done < elements; done += step) {
      const uint64_t count = std::min(step, elements - done);
      builder_.add_block(count, most_bytes(kind, count));
      const auto piece = static_cast<uint32_t>(plan_.pieces.size() - (is_sparse(kind) ? 1 : 0));
      plan_.blocks.push_back({at_, static_cast<uint32_t>(count), is_sparse(kind) ? piece : 0, kind});
      if (is_sparse(kind)) {
        plan_.pieces.back().blocks += 1;
      }
      at_ += count;
    }
  }

  void flush_raw() {
    while (raw_run_ > 0) {
      const uint64_t count = builder_.add_raw(raw_run_, sizeof(float));
      plan_.blocks.push_back({at_, static_cast<uint32_t>(count), 0, BlockKind::kRaw});
      at_ += count;
      raw_run_ -= count;
    }
  }

  const BucketShape& shape_;
  std::span<const CodecSettings> settings_;
  SegmentBuilder builder_;
  BucketPlan plan_;
  std::vector<uint32_t> sparse_of_;  // by layer, into plan_.layers
  uint64_t at_ = 0;                  // first element that is in no block yet
  uint64_t raw_run_ = 0;             // raw elements from at_ on that wait for their run's end
};

}  // namespace

Status check_settings(const BucketShape& shape, std::span<const CodecSettings> settings) {
  if (settings.size() != shape.layers.size()) {
    return {Code::kInvalidArgument, "a bucket of " + std::to_string(shape.layers.size()) +
                                        " layers got codec settings for " + std::to_string(settings.size())};
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    const CodecSettings& s = settings[i];
    const Layer& layer = shape.layers[i];
    const auto names = codec_names();
    if (std::find(names.begin(), names.end(), s.codec) == names.end()) {
      std::string known;
      for (const std::string_view name : names) {
        known += (known.empty() ? "" : ", ") + std::string(name);
      }
      return refuse(layer, "codec " + s.codec + " does not exist; use one of " + known);
    }
    if (!(s.density > 0 && s.density <= 1)) {
      return refuse(layer, "density " + std::to_string(s.density) + " is not above 0 and at most 1");
    }
    if (!(s.edge_density_factor >= 1 && s.edge_density_factor <= 100)) {
      return refuse(layer, "edge_density_factor " + std::to_string(s.edge_density_factor) +
                               " is not between 1 and 100");
    }
    if (!(s.density_cap >= 1 && s.density_cap <= 1000)) {
      return refuse(layer, "density_cap " + std::to_string(s.density_cap) + " is not between 1 and 1000");
    }
  }
  return ok_status();
}

BucketPlan make_plan(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements) {
  return Planner(shape, settings, elements).plan();
}

}  // namespace gradwire::compress
