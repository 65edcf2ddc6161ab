#include "compress/owed.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compress/accumulate.h"

namespace gradwire::compress {
namespace {

std::span<const float> run_of(const LayerState& state) {
  return std::span(*state.residual.memory).subspan(state.residual.first, state.elements);
}

}  // namespace

void Owed::add(const ExactLayer& layer, const LayerState& state, double scale) {
  Layer& owed = layers_.emplace_back();
  owed.first = layer.first;
  owed.own = layer.residual_layer;
  owed.at = floats_;
  owed.state = state;
  owed.state.velocity = {};
  owed.state.residual = {};
  if (!state.residual.kept) {
    return;
  }
  auto values = std::make_shared<std::vector<float>>(state.elements);
  if (rescale(run_of(state), scale / state.scale, values->data())) {
    rescale_controllers(scale, owed.state);
    owed.state.residual = {true, std::move(values), 0};
    floats_ += state.elements;
    any_ = true;
  }
}

void Owed::fill(uint64_t first, uint64_t count, double scale, float* out) const {
  std::fill_n(out, count, 0.0F);
  const uint64_t end = first + count;
  auto layer = std::partition_point(layers_.begin(), layers_.end(), [first](const Layer& each) {
    return each.first + each.state.elements <= first;
  });
  for (; any_ && layer != layers_.end() && layer->first < end; ++layer) {
    if (!layer->state.residual.kept) {
      continue;
    }
    const uint64_t from = std::max(first, layer->first);
    const uint64_t to = std::min(end, layer->first + layer->state.elements);
    multiply(run_of(layer->state).data() + (from - layer->first),
             static_cast<float>(scale / layer->state.scale), out + (from - first), to - from);
  }
}

double Owed::square_sum() const {
  double sum = 0;
  for (const Layer& layer : layers_) {
    if (any_ && layer.state.residual.kept) {
      sum += compress::square_sum(run_of(layer.state).data(), layer.state.elements);
    }
  }
  return sum;
}

// The layer's own state has its momentum, and the scale of the last commit.
void Owed::add_to(LayerState& own, const Layer& layer, const LayerValues& residual) {
  LayerState state = layer.state;
  rescale_controllers(own.scale, state);
  state.residual = residual;
  state.velocity = std::move(own.velocity);
  state.operations = std::max(own.operations, state.operations);
  own = std::move(state);
}

std::vector<LayerState> Owed::take(std::span<LayerState> own) {
  std::vector<LayerState> state;
  for (Layer& layer : layers_) {
    const LayerValues residual = any_ ? layer.state.residual : LayerValues{};
    if (layer.own < own.size()) {
      add_to(own[layer.own], layer, residual);
    } else {
      state.push_back(std::move(layer.state));
      state.back().residual = residual;
    }
  }
  layers_.clear();
  floats_ = 0;
  any_ = false;
  return state;
}

void Owed::copy(KeptWindow& window) const {
  for (const Layer& layer : layers_) {
    if (any_ && layer.state.residual.kept) {
      window.pass(run_of(layer.state));
    }
  }
}

// Where the layer's values are, if it has any, in what is copied out from `from` on.
LayerValues Owed::place_of(const Layer& layer, uint64_t from) const {
  return any_ && layer.state.residual.kept ? LayerValues{true, nullptr, from + layer.at} : LayerValues{};
}

void Owed::merge(uint64_t from, size_t first, std::span<LayerState> own) const {
  for (const Layer& layer : layers_) {
    if (layer.own >= first && layer.own - first < own.size()) {
      add_to(own[layer.own - first], layer, place_of(layer, from));
    }
  }
}

void Owed::describe(uint64_t from, bool merges, size_t skipped, size_t count,
                    std::vector<LayerState>& out) const {
  for (const Layer& layer : layers_) {
    if (merges && layer.own != ExactLayer::kKeepsNothing) {
      continue;
    }
    if (skipped > 0) {
      --skipped;
    } else if (count > 0) {
      --count;
      out.push_back(layer.state);
      out.back().residual = place_of(layer, from);
    }
  }
}

}  // namespace gradwire::compress
