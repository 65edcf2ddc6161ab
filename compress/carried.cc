#include "compress/carried.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "config/base/loss_scale.h"
#include "config/base/scramble.h"

namespace gradwire::compress {
namespace {

// Squares of fp32 values lie below this.
constexpr double kMaxMeanSquare = 1.2e77;
// Far beyond every warm start, far below what could overflow.
constexpr uint64_t kMaxOperations = uint64_t{1} << 48;
constexpr size_t kRestoredTile = 1024;  // elements

// Empty where they do not lie within their memory.
std::span<const float> run_of(const LayerState& state, const LayerValues& values) {
  if (values.memory == nullptr || state.elements > values.memory->size() ||
      values.first > values.memory->size() - state.elements) {
    return {};
  }
  return std::span(*values.memory).subspan(values.first, state.elements);
}

bool makes_sense(const LayerState& state) {
  if (!is_loss_scale(state.scale)) {
    return false;
  }
  for (const LayerValues* values : {&state.residual, &state.velocity}) {
    const auto run = run_of(state, *values);
    if (values->kept && (run.size() != state.elements || !all_finite(run))) {
      return false;
    }
  }
  return true;
}

// Layers whose state nobody has taken yet. Names that occur more than once are served in order, so that no
// residual is used twice.
class Known {
 public:
  explicit Known(std::span<const LayerState> state) {
    for (const LayerState& layer : state) {
      layers_.emplace(std::pair(std::string_view(layer.name), layer.elements), &layer);
    }
  }
  // nullptr: there is none, or it makes no sense.
  const LayerState* take(std::string_view name, uint64_t elements) {
    const auto at = layers_.lower_bound(std::pair(name, elements));
    if (at == layers_.end() || at->first != std::pair(name, elements)) {
      return nullptr;
    }
    const LayerState* const state = at->second;
    layers_.erase(at);
    return makes_sense(*state) ? state : nullptr;
  }

 private:
  std::multimap<std::pair<std::string_view, uint64_t>, const LayerState*> layers_;
};

// Returns how many layers nobody else has restored.
size_t restore_owed(const BucketPlan& plan, const std::vector<const LayerState*>& found, double scale,
                    Known& known, Owed& owed) {
  size_t restored = 0;
  for (const ExactLayer& layer : plan.exact_layers) {
    const LayerState* state = layer.residual_layer == ExactLayer::kKeepsNothing
                                  ? nullptr
                                  : found[layer.residual_layer];  // of its momentum
    if (state == nullptr || !state->residual.kept) {
      state = known.take(layer.name, layer.elements);
      restored += state == nullptr ? 0 : 1;
    }
    if (state != nullptr) {
      // The layer's own state, if it has one, is at the scale of all.
      const bool merges = layer.residual_layer != ExactLayer::kKeepsNothing && scale > 0;
      owed.add(layer, *state, merges ? scale : state->scale);
    }
  }
  return restored;
}

// The scale of the largest layer, so that as few values as possible are rounded once more.
double common_scale(const std::vector<const LayerState*>& found) {
  const LayerState* largest = nullptr;
  for (const LayerState* layer : found) {
    if (layer != nullptr && (largest == nullptr || layer->elements > largest->elements)) {
      largest = layer;
    }
  }
  return largest == nullptr ? 0 : largest->scale;
}

bool restore_residual(std::span<const float> from, double factor, const ResidualLayer& layer,
                      Residuals& residuals) {
  if (!layer.half) {
    return rescale(from, factor, residuals.floats.data() + layer.at);
  }
  uint16_t* const to = residuals.halves.data() + layer.at;
  std::array<float, kRestoredTile> tile;
  for (size_t begin = 0; begin < from.size(); begin += kRestoredTile) {
    const size_t count = std::min(kRestoredTile, from.size() - begin);
    if (!rescale(from.subspan(begin, count), factor, tile.data())) {
      std::fill_n(to, from.size(), uint16_t{0});
      return false;
    }
    narrow(std::span(tile).first(count), scramble(layer.at + begin), to + begin);
  }
  return true;
}

bool is_square_sum(double squares, uint64_t elements) {
  return squares >= 0 && squares <= kMaxMeanSquare * static_cast<double>(elements);
}

// Exactly, where the layer is cut as it was. `factor` is on squares.
bool restore_norms(const LayerState& state, double factor, uint32_t index, const BucketPlan& plan,
                   Carried& carried) {
  const SparseLayer& layer = plan.layers[index];
  if (state.pieces.size() != layer.pieces || !is_square_sum(state.squares * factor, layer.elements)) {
    return false;
  }
  for (uint32_t i = 0; i < layer.pieces; ++i) {
    const LayerState::Piece& piece = state.pieces[i];
    if (piece.elements != plan.pieces[layer.first_piece + i].elements ||
        !is_square_sum(piece.squares * factor, piece.elements)) {
      return false;
    }
  }
  carried.layer_squares[index] = state.squares * factor;
  for (uint32_t i = 0; i < layer.pieces; ++i) {
    carried.piece_squares[layer.first_piece + i] = state.pieces[i].squares * factor;
  }
  return true;
}

void restore_controller(const LayerState& state, double factor, uint32_t index, BucketPlan& plan,
                        Carried& carried) {
  SparseLayer& layer = plan.layers[index];
  layer.control.restore({state.alpha, state.dispersion, state.aimed});
  carried.sampled.restore(index, layer.elements, state.threshold * static_cast<float>(factor));
  if (restore_norms(state, factor * factor, index, plan, carried)) {
    return;
  }
  const double mean = state.mean_square * factor * factor;
  if (!(mean > 0 && mean <= kMaxMeanSquare)) {
    return;
  }
  carried.layer_squares[index] = mean * static_cast<double>(layer.elements);
  for (uint32_t p = layer.first_piece; p < layer.first_piece + layer.pieces; ++p) {
    carried.piece_squares[p] = mean * static_cast<double>(plan.pieces[p].elements);
  }
}

std::shared_ptr<const std::vector<float>> released(FloatBuffer& buffer) {
  return std::make_shared<const std::vector<float>>(buffer.release());
}

// As fp32, as which it takes the memory of both arrays of a bucket in bf16.
std::shared_ptr<const std::vector<float>> released(std::vector<uint16_t>& halves) {
  auto wide = std::make_shared<std::vector<float>>(halves.size());
  widen(halves, wide->data());
  halves = {};
  return wide;
}

}  // namespace

std::vector<LayerState> describe_state(const BucketPlan& plan, const Carried& carried, uint64_t operations,
                                       size_t first, size_t count) {
  std::vector<LayerState> state;
  if (!(carried.scale > 0) || first >= plan.residual_layers.size()) {
    return state;
  }
  const auto layers = std::span(plan.residual_layers).subspan(first);
  count = std::min(count, layers.size());
  state.reserve(count);
  const size_t floats = carried.residual.floats.view().size();
  for (const ResidualLayer& layer : layers.first(count)) {
    LayerState& kept = state.emplace_back();
    kept.name = layer.name;
    kept.elements = layer.elements;
    kept.residual = {layer.residual, nullptr, layer.at + (layer.half ? floats : 0)};
    kept.velocity = {layer.momentum, nullptr, carried.residual.size() + layer.first};
    kept.scale = carried.scale;
    kept.operations = layer.earlier + operations;
    if (layer.sparse == ResidualLayer::kNotSparse) {
      continue;
    }
    const SparseLayer& sparse = plan.layers[layer.sparse];
    double squares = 0;
    for (uint32_t p = sparse.first_piece; p < sparse.first_piece + sparse.pieces; ++p) {
      squares += carried.piece_squares[p];
      kept.pieces.push_back({plan.pieces[p].elements, carried.piece_squares[p]});
    }
    kept.alpha = sparse.control.state().alpha;
    kept.dispersion = sparse.control.state().dispersion;
    kept.aimed = sparse.control.state().aimed;
    kept.mean_square = squares / static_cast<double>(layer.elements);
    kept.squares = carried.layer_squares[layer.sparse];
    kept.threshold = carried.sampled.next(layer.sparse);
  }
  return state;
}

std::vector<LayerState> take_state(const BucketPlan& plan, Carried& carried, uint64_t operations) {
  std::vector<LayerState> state = describe_state(plan, carried, operations, 0, plan.residual_layers.size());
  if (state.empty()) {
    return state;
  }
  const size_t residuals = carried.residual.size();
  const size_t floats = carried.residual.floats.view().size();
  const auto residual = released(carried.residual.floats);
  const auto widened = released(carried.residual.halves);
  const auto velocity = released(carried.velocity);
  carried.scale = 0;
  for (size_t i = 0; i < state.size(); ++i) {
    LayerState& layer = state[i];
    const bool half = plan.residual_layers[i].half;
    if (layer.residual.kept) {
      layer.residual.memory = half ? widened : residual;
      layer.residual.first =
          half ? layer.residual.first - floats : layer.residual.first + carried.residual.floats.offset();
    }
    if (layer.velocity.kept) {
      layer.velocity.memory = velocity;
      layer.velocity.first += carried.velocity.offset() - residuals;
    }
  }
  return state;
}

size_t restore_state(std::span<const LayerState> state, BucketPlan& plan, Carried& carried, Owed& owed) {
  Known known(state);
  std::vector<const LayerState*> found;
  for (const ResidualLayer& layer : plan.residual_layers) {
    found.push_back(known.take(layer.name, layer.elements));
  }
  carried.scale = common_scale(found);
  size_t restored = restore_owed(plan, found, carried.scale, known, owed);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == nullptr) {
      continue;
    }
    ResidualLayer& layer = plan.residual_layers[i];
    const double factor = carried.scale / found[i]->scale;
    const LayerState& from = *found[i];
    if (layer.residual && from.residual.kept &&
        !restore_residual(run_of(from, from.residual), factor, layer, carried.residual)) {
      continue;
    }
    if (layer.momentum && from.velocity.kept) {
      rescale(run_of(from, from.velocity), factor, carried.velocity.data() + layer.first);
    }
    layer.earlier = std::min(from.operations, kMaxOperations);
    if (layer.sparse != ResidualLayer::kNotSparse) {
      restore_controller(*found[i], factor, layer.sparse, plan, carried);
    }
    restored += 1;
  }
  return restored;
}

}  // namespace gradwire::compress
