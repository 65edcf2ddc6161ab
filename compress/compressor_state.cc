// What a compressor takes over from other buckets, and what it leaves to others.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "compress/accumulate.h"
#include "compress/compressor.h"

namespace gradwire::compress {

std::vector<LayerState> Compressor::take_state() {
  std::vector<LayerState> state = compress::take_state(plan_, carried_, stats_.operations);
  std::vector<LayerState> owed = owed_.take();
  std::move(owed.begin(), owed.end(), std::back_inserter(state));
  return state;
}

std::vector<LayerState> Compressor::describe_state(size_t first, size_t count) const {
  std::vector<LayerState> state = compress::describe_state(plan_, carried_, stats_.operations, first, count);
  const size_t own = carried_.scale > 0 ? plan_.residual_layers.size() : 0;
  if (state.size() < count) {
    std::vector<LayerState> owed = owed_.described(carried_.residual.size() + carried_.velocity.view().size(),
                                                   first - std::min(first, own), count - state.size());
    std::move(owed.begin(), owed.end(), std::back_inserter(state));
  }
  return state;
}

size_t Compressor::restore_state(std::span<const LayerState> state) {
  if (stats_.operations > 0 || carried_.scale > 0 || owed_.any()) {
    return 0;
  }
  const size_t restored = compress::restore_state(state, plan_, carried_, owed_, earlier_);
  stats_.residual_norm = std::sqrt(carried_.residual.square_sum() + owed_.square_sum());
  stats_.warm_stage = warm_stage();
  if (owed_.any()) {
    uint32_t largest = 0;
    for (const Block& block : plan_.blocks) {
      largest = std::max(largest, block.codec == 0 ? block.elements : 0);
    }
    owing_.resize(largest);
  }
  return restored;
}

uint64_t Compressor::kept_floats() const {
  return carried_.residual.size() + carried_.velocity.view().size() + owed_.floats();
}

void Compressor::copy_kept(uint64_t from, std::span<float> to) const {
  KeptWindow window(from, to);
  window.pass(carried_.residual.floats.view());
  window.pass(std::span(carried_.residual.halves));
  window.pass(carried_.velocity.view());
  for (const std::span<const float> run : owed_.values()) {
    window.pass(run);
  }
}

}  // namespace gradwire::compress
