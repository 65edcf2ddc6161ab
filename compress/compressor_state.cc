// What a compressor takes over from other buckets, and what it leaves to others.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "compress/compressor.h"

namespace gradwire::compress {

std::vector<LayerState> Compressor::take_state() {
  std::vector<LayerState> state = compress::take_state(plan_, carried_, stats_.operations);
  std::vector<LayerState> owed = owed_.take(state);
  std::move(owed.begin(), owed.end(), std::back_inserter(state));
  return state;
}

std::vector<LayerState> Compressor::describe_state(size_t first, size_t count) const {
  std::vector<LayerState> state = compress::describe_state(plan_, carried_, stats_.operations, first, count);
  const uint64_t from = carried_.residual.size() + carried_.velocity.view().size();
  owed_.merge(from, first, state);
  const bool merges = carried_.scale > 0;
  const size_t own = merges ? plan_.residual_layers.size() : 0;
  owed_.describe(from, merges, first - std::min(first, own), count - state.size(), state);
  return state;
}

size_t Compressor::restore_state(std::span<const LayerState> state) {
  if (stats_.operations > 0 || carried_.scale > 0 || owed_.any()) {
    return 0;
  }
  const size_t restored = compress::restore_state(state, plan_, carried_, owed_);
  for (const ResidualLayer& layer : plan_.residual_layers) {
    earlier_ = std::max(earlier_, layer.earlier);
  }
  stats_.residual_norm = std::sqrt(carried_.residual.square_sum() + owed_.square_sum());
  stats_.warm_stage = warm_stage();
  if (owed_.any()) {
    uint32_t largest = 0;
    for (const Block& block : plan_.blocks) {
      largest = std::max(largest, block.codec == 0 ? block.elements : 0);
    }
    owing_.resize(largest);
    stats_.residual_bytes = memory();
  }
  return restored;
}

uint64_t Compressor::memory() const {
  uint64_t bytes = carried_.residual.bytes() + next_.bytes() + carried_.velocity.view().size_bytes() +
                   next_velocity_.view().size_bytes() + carried_.sampled.bytes() + collected_.bytes() +
                   owed_.bytes() + (fresh_.size() + wide_.size() + owing_.size()) * sizeof(float);
  for (const auto& codec : plan_.codecs) {
    bytes += codec == nullptr ? 0 : codec->memory();
  }
  return bytes;
}

uint64_t Compressor::kept_floats() const {
  return carried_.residual.size() + carried_.velocity.view().size() + owed_.floats();
}

void Compressor::copy_kept(uint64_t from, std::span<float> to) const {
  KeptWindow window(from, to);
  window.pass(carried_.residual.floats.view());
  window.pass(std::span(carried_.residual.halves));
  window.pass(carried_.velocity.view());
  owed_.copy(window);
}

}  // namespace gradwire::compress
