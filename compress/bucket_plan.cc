#include "compress/bucket_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compress/codecs/magnitudes.h"
#include "compress/codecs/random_bits.h"

namespace gradwire::compress {
namespace {

// The codec of a layer: its own, or its small one's.
const CodecRow& row_of(const Layer& layer, const CodecSettings& settings) {
  return *find_codec(codec_of_layer(settings.codec, settings.dense_below, layer.elements));
}

// A raw run that is clipped is cut into blocks of at most so many elements.
constexpr uint32_t kClippedRawBlock = 65536;

constexpr bool is_sparse(const CodecRow& row) {
  return row.selection != Selection::kAll;
}

bool uses_fresh_norm(const CodecSettings& settings) {
  return find_codec(settings.codec)->selection == Selection::kRms && goes_by_fresh_norm(settings);
}

// Elements of a layer's largest block, if gradients of its blocks are gathered in scratch; else 0.
uint32_t gathered_block(const Layer& layer, const CodecSettings& settings) {
  const CodecRow& row = row_of(layer, settings);
  if (settings.clip_norm == 0 && !(is_sparse(row) && uses_fresh_norm(settings))) {
    return 0;
  }
  const uint64_t most = row.make == nullptr ? kClippedRawBlock : row.block;
  return static_cast<uint32_t>(std::min(most, layer.elements));
}

// Elements of the layer whose residual is in bf16, and of its largest block.
uint64_t half_elements(const Layer& layer, const CodecSettings& settings) {
  const bool coded = row_of(layer, settings).make != nullptr;
  return coded && settings.residuals == ResidualType::kBfloat16 ? layer.elements : 0;
}

uint32_t half_block(const Layer& layer, const CodecSettings& settings) {
  const uint64_t block = row_of(layer, settings).block;
  return static_cast<uint32_t>(std::min(block, half_elements(layer, settings)));
}

Status refuse(const Layer& layer, const std::string& what) {
  return {Code::kInvalidArgument, "layer " + layer.name + ": " + what};
}

// One codec instance for all layers whose blocks it would code alike.
struct CodecUses {
  struct Instance {
    const CodecRow* row = nullptr;
    CodecUse use;
  };

  CodecUses(const BucketShape& shape, std::span<const CodecSettings> settings) {
    for (size_t i = 0; i < settings.size(); ++i) {
      const Layer& layer = shape.layers[i];
      const CodecRow& row = row_of(layer, settings[i]);
      of_layer.push_back(
          row.make == nullptr || layer.elements == 0 ? 0 : add(row, layer, settings[i], shape.nodes));
    }
  }

  std::vector<Instance> instances;
  std::vector<uint16_t> of_layer;  // one more than the index of its instance; 0: raw elements, or none

 private:
  uint16_t add(const CodecRow& row, const Layer& layer, const CodecSettings& settings, uint32_t nodes) {
    size_t at = 0;
    while (at < instances.size() && !alike(instances[at], row, settings)) {
      ++at;
    }
    if (at == instances.size()) {
      instances.push_back({&row, {settings, 0, nodes}});
    }
    uint32_t& largest = instances[at].use.largest;
    largest = std::max(largest, static_cast<uint32_t>(std::min<uint64_t>(row.block, layer.elements)));
    return static_cast<uint16_t>(at + 1);
  }

  static bool alike(const Instance& made, const CodecRow& row, const CodecSettings& settings) {
    return made.row->make == row.make &&
           (!row.rounds || (made.use.settings.rounding == settings.rounding &&
                            made.use.settings.steps_per_octave == settings.steps_per_octave));
  }
};

class Planner {
 public:
  Planner(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements)
      : shape_(shape), settings_(settings), builder_(shape.max_message_bytes) {
    plan_.elements = elements;
    plan_.nodes = shape.nodes;
    plan_.direct = shape.direct;
    plan_.node = shape.node;
  }

  BucketPlan plan() {
    make_codecs();
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
  void make_codecs() {
    const CodecUses uses(shape_, settings_);
    plan_.codecs.resize(1);
    for (const CodecUses::Instance& instance : uses.instances) {
      plan_.codecs.push_back(instance.row->make(instance.use));
      plan_.tallies |= instance.row->kind == CodecKind::kTally;
    }
    codec_of_ = uses.of_layer;
    for (size_t i = 0; i < settings_.size(); ++i) {
      const CodecRow& row = row_of(shape_.layers[i], settings_[i]);
      plan_.has_momentum |= settings_[i].momentum > 0;
      plan_.largest_fresh = std::max(plan_.largest_fresh, gathered_block(shape_.layers[i], settings_[i]));
      const auto number = static_cast<uint64_t>(&row - codec_table().data());
      const uint64_t steps = row.rounds ? settings_[i].steps_per_octave : 0;
      plan_.wire_variant = scramble(plan_.wire_variant + number + (steps << 32));
    }
    plan_.wire_variant += shape_.direct ? 1 : 0;
    for (const CodecUses::Instance& instance : uses.instances) {
      plan_.largest_coded = std::max(plan_.largest_coded, instance.use.largest);
    }
  }

  void find_residual_layers() {
    uint64_t first = 0;
    uint64_t halves = 0;
    bool floats = false;
    for (size_t i = 0; i < shape_.layers.size(); ++i) {
      const Layer& layer = shape_.layers[i];
      const uint64_t half = half_elements(layer, settings_[i]);
      elsewhere_.push_back(half > 0 ? first - halves : halves);
      const bool sparse_layer = is_sparse(row_of(layer, settings_[i]));
      const bool coded = codec_of_[i] != 0;
      const bool momentum = settings_[i].momentum > 0;
      if ((coded || momentum) && layer.elements > 0) {
        const uint32_t sparse = sparse_layer ? sparse_of_[i] : ResidualLayer::kNotSparse;
        if (sparse_layer) {
          plan_.layers[sparse].residual_layer = static_cast<uint32_t>(plan_.residual_layers.size());
        }
        plan_.residual_layers.push_back({layer.name, layer.elements, first, sparse, 0, coded, momentum,
                                         half > 0, first - elsewhere_.back()});
        floats |= coded && half == 0;
      }
      if (!coded && layer.elements > 0) {
        const auto kept = static_cast<uint32_t>(plan_.residual_layers.size()) - 1;
        plan_.exact_layers.push_back(
            {layer.name, layer.elements, first, momentum ? kept : ExactLayer::kKeepsNothing});
      }
      first += layer.elements;
      halves += half;
      plan_.largest_half = std::max(plan_.largest_half, half_block(layer, settings_[i]));
    }
    plan_.half_residuals = halves;
    plan_.float_residuals = floats ? plan_.elements - halves : 0;
  }

  // The first and the last of more than two large layers are sent at a higher density.
  void find_sparse_layers() {
    std::vector<size_t> large;
    for (size_t i = 0; i < shape_.layers.size(); ++i) {
      if (is_sparse(row_of(shape_.layers[i], settings_[i])) && shape_.layers[i].elements > 0) {
        large.push_back(i);
      }
    }
    sparse_of_.assign(shape_.layers.size(), 0);
    for (size_t n = 0; n < large.size(); ++n) {
      const size_t i = large[n];
      const bool edge = large.size() > 2 && (n == 0 || n + 1 == large.size());
      const double factor = edge ? settings_[i].edge_density_factor : 1.0;
      const double target = std::min(1.0, settings_[i].density * factor);
      sparse_of_[i] = static_cast<uint32_t>(plan_.layers.size());
      const CodecSettings& settings = settings_[i];
      SparseLayer layer{.control = LayerControl(settings, target)};
      layer.selection = find_codec(settings.codec)->selection;
      layer.scope = settings.scope;
      layer.sparse_rows = settings.sparse_rows;
      layer.elements = shape_.layers[i].elements;
      layer.norm_of = uses_fresh_norm(settings) ? NormOf::kGradient : NormOf::kSum;
      plan_.layers.push_back(layer);
    }
  }

  void add_piece(size_t layer, uint64_t elements) {
    const uint16_t codec = codec_of_[layer];
    const auto momentum = static_cast<float>(settings_[layer].momentum);
    if (codec == 0) {
      const double clip = clip_of(layer);
      if (momentum != raw_momentum_ || clip > 0 || raw_clip_ > 0) {
        flush_raw();
        raw_momentum_ = momentum;
        raw_clip_ = clip;
      }
      raw_run_ += elements;
      return;
    }
    flush_raw();
    const bool sparse_layer = is_sparse(row_of(shape_.layers[layer], settings_[layer]));
    if (sparse_layer) {
      SparseLayer& sparse = plan_.layers[sparse_of_[layer]];
      if (sparse.pieces++ == 0) {
        sparse.first_piece = static_cast<uint32_t>(plan_.pieces.size());
      }
      plan_.pieces.push_back({sparse_of_[layer], elements, static_cast<uint32_t>(plan_.blocks.size()), 0});
    }
    const uint32_t piece = sparse_layer ? static_cast<uint32_t>(plan_.pieces.size() - 1) : kNoPiece;
    const uint64_t step = row_of(shape_.layers[layer], settings_[layer]).block;
    for (uint64_t done = 0; done < elements; done += step) {
      const uint64_t count = std::min(step, elements - done);
      builder_.add_block(count, plan_.codecs[codec]->max_bytes(count));
      plan_.blocks.push_back(
          {at_, static_cast<uint32_t>(count), piece, codec, settings_[layer].error_feedback,
           settings_[layer].residuals == ResidualType::kBfloat16, momentum,
           clip_of(layer) * std::sqrt(static_cast<double>(count)), at_ - elsewhere_[layer]});
      if (sparse_layer) {
        plan_.pieces.back().blocks += 1;
      }
      at_ += count;
    }
  }

  // What an element's share of the layer's bound is, as a root of a mean square.
  double clip_of(size_t layer) const {
    const double elements = static_cast<double>(shape_.layers[layer].elements);
    return settings_[layer].clip_norm / std::sqrt(elements * shape_.nodes);
  }

  void flush_raw() {
    while (raw_run_ > 0) {
      const uint64_t most = raw_clip_ > 0 ? std::min<uint64_t>(raw_run_, kClippedRawBlock) : raw_run_;
      const uint64_t count = builder_.add_raw(most, sizeof(float));
      plan_.blocks.push_back({at_, static_cast<uint32_t>(count), kNoPiece, 0, true, false, raw_momentum_,
                              raw_clip_ * std::sqrt(static_cast<double>(count))});
      at_ += count;
      raw_run_ -= count;
    }
  }

  const BucketShape& shape_;
  std::span<const CodecSettings> settings_;
  SegmentBuilder builder_;
  BucketPlan plan_;
  std::vector<uint16_t> codec_of_;   // by layer, into plan_.codecs
  std::vector<uint32_t> sparse_of_;  // by layer, into plan_.layers
  std::vector<uint64_t> elsewhere_;  // by layer: elements before it whose residuals are of the other type
  uint64_t at_ = 0;                  // first element that is in no block yet
  float raw_momentum_ = 0;           // of the raw run
  double raw_clip_ = 0;              // likewise, as clip_of() has it
  uint64_t raw_run_ = 0;             // raw elements from at_ on that wait for their run's end
};

}  // namespace

Status check_settings(const BucketShape& shape, std::span<const CodecSettings> settings) {
  if (shape.node >= shape.nodes) {
    return {Code::kInvalidArgument, "node " + std::to_string(shape.node) + " of a ring of " +
                                        std::to_string(shape.nodes) + " does not exist; nodes count from 0"};
  }
  if (settings.size() != shape.layers.size()) {
    return {Code::kInvalidArgument, "a bucket of " + std::to_string(shape.layers.size()) +
                                        " layers got codec settings for " + std::to_string(settings.size())};
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    const CodecSettings& s = settings[i];
    const Layer& layer = shape.layers[i];
    const CodecRow* const row = find_codec(s.codec);
    if (row == nullptr) {
      std::string known;
      for (const std::string_view name : codec_names()) {
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
    if (!(s.momentum >= 0 && s.momentum < 1)) {
      return refuse(layer, "momentum " + std::to_string(s.momentum) + " is not at least 0 and below 1");
    }
    if (!(s.clip_norm >= 0 && s.clip_norm <= 1e9)) {
      return refuse(layer, "clip_norm " + std::to_string(s.clip_norm) +
                               " is not between 0 and 1e9; use 0 to clip nothing");
    }
    if (s.steps_per_octave != 8 && s.steps_per_octave != 16) {
      return refuse(layer, "steps_per_octave " + std::to_string(s.steps_per_octave) + " is neither 8 nor 16");
    }
    if (row->kind == CodecKind::kTally && shape.nodes > kMostVoters) {
      return refuse(layer, "codec " + s.codec + " counts the votes of at most " +
                               std::to_string(kMostVoters) + " nodes, not of " + std::to_string(shape.nodes) +
                               "; use another codec");
    }
    if (row->kind == CodecKind::kTally && shape.direct) {
      return refuse(layer, "codec " + s.codec + " counts votes along a ring; use algorithm ring, not direct");
    }
  }
  return ok_status();
}

bool may_be_direct(std::span<const CodecSettings> settings) {
  return std::none_of(settings.begin(), settings.end(), [](const CodecSettings& s) {
    const CodecRow* const row = find_codec(s.codec);
    return row != nullptr && row->kind == CodecKind::kTally;
  });
}

uint64_t held_bytes(const BucketShape& shape, std::span<const CodecSettings> settings) {
  uint64_t elements = 0;
  uint64_t samples = 0;
  uint64_t halves = 0;
  uint32_t fresh = 0;
  uint32_t wide = 0;
  bool floats = false;
  bool momentum = false;
  for (size_t i = 0; i < settings.size(); ++i) {
    const Layer& layer = shape.layers[i];
    if (find_codec(settings[i].codec) == nullptr) {
      return 0;
    }
    const CodecRow& row = row_of(layer, settings[i]);
    elements += layer.elements;
    momentum |= settings[i].momentum > 0;
    samples += row.selection == Selection::kSampled ? most_samples(layer.elements) : 0;
    fresh = std::max(fresh, gathered_block(layer, settings[i]));
    wide = std::max(wide, half_block(layer, settings[i]));
    const uint64_t half = half_elements(layer, settings[i]);
    halves += half;
    floats |= row.make != nullptr && layer.elements > 0 && half == 0;
  }
  const CodecUses uses(shape, settings);
  uint64_t scratch = 0;
  uint32_t largest = 0;
  for (const CodecUses::Instance& instance : uses.instances) {
    scratch += uint64_t{instance.row->scratch(instance.use.settings)} * instance.use.largest;
    largest = std::max(largest, instance.use.largest);
  }
  if (shape.direct && shape.nodes > 2) {
    scratch += (elements / shape.nodes + kChunkAlignment + largest) * sizeof(float);
  }
  // Residual and momentum as of the last commit and of the operation in flight; samples, and a copy to sort.
  const uint64_t residuals = halves * sizeof(uint16_t) + (floats ? (elements - halves) * sizeof(float) : 0);
  const uint64_t velocity = momentum ? elements * sizeof(float) : 0;
  return 2 * (residuals + velocity + samples * sizeof(uint32_t)) + (uint64_t{fresh} + wide) * sizeof(float) +
         scratch;
}

BucketPlan make_plan(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements) {
  return Planner(shape, settings, elements).plan();
}

}  // namespace gradwire::compress
