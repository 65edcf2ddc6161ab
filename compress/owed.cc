#include "compress/owed.h"

#include <algorithm>
#include <utility>

#include "compress/accumulate.h"

namespace gradwire::compress {
namespace {

std::span<const float> run_of(const LayerState& state) {
  return std::span(*state.residual.memory).subspan(state.residual.first, state.elements);
}

}  // namespace

void Owed::add(const LayerState& state, uint64_t first) {
  layers_.push_back({first, state});
  layers_.back().state.velocity = {};
  any_ = any_ || state.residual.kept;
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
  for (const std::span<const float> run : values()) {
    sum += compress::square_sum(run.data(), run.size());
  }
  return sum;
}

std::vector<LayerState> Owed::take() {
  std::vector<LayerState> state;
  for (Layer& layer : layers_) {
    state.push_back(std::move(layer.state));
    if (!any_) {
      state.back().residual = {};
    }
  }
  layers_.clear();
  any_ = false;
  return state;
}

uint64_t Owed::floats() const {
  uint64_t floats = 0;
  for (const std::span<const float> run : values()) {
    floats += run.size();
  }
  return floats;
}

std::vector<LayerState> Owed::described(uint64_t from, size_t skipped, size_t count) const {
  std::vector<LayerState> state;
  for (const Layer& layer : layers_) {
    if (!any_ || !layer.state.residual.kept || state.size() == count) {
      continue;
    }
    if (skipped > 0) {
      --skipped;
    } else {
      state.push_back(layer.state);
      state.back().residual = {true, nullptr, from};
    }
    from += layer.state.elements;
  }
  return state;
}

std::vector<std::span<const float>> Owed::values() const {
  std::vector<std::span<const float>> runs;
  for (const Layer& layer : layers_) {
    if (any_ && layer.state.residual.kept) {
      runs.push_back(run_of(layer.state));
    }
  }
  return runs;
}

}  // namespace gradwire::compress
