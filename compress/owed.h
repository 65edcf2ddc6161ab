// What layers that are sent exactly have left over from times when they were not: their next operation that
// commits takes it along, and then nothing is owed any more. Of a bucket that changes its codec, or takes
// over the layers of one that had another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compress/bucket_plan.h"
#include "compress/reducer.h"
#include "compress/residuals.h"

namespace gradwire::compress {

class Owed {
 public:
  // Layers in the bucket's order. Takes a copy of the residual, at the loss scale `scale`.
  void add(const ExactLayer& layer, const LayerState& state, double scale);

  bool any() const { return any_; }
  // What `count` elements from `first` on owe, at the loss scale `scale`; 0 where nothing.
  void fill(uint64_t first, uint64_t count, double scale, float* out) const;
  double square_sum() const;  // each layer's at its own scale
  // The memory stays until the bucket ends, as long as its user is charged: a commit has no time to free it.
  void settle() { any_ = false; }

  // All of it as layers for another bucket, residuals as far as they are owed, and how the controllers stood.
  // `own` are the states of all residual layers of the plan, or of none: what is about one of them goes there
  // instead. Nothing is left.
  std::vector<LayerState> take(std::span<LayerState> own);

  // What has values: how many floats they are, and the values one after the other.
  uint64_t floats() const { return any_ ? floats_ : 0; }
  void copy(KeptWindow& window) const;
  // What take() gives without the values; LayerValues::first from `from` on. merge() adds layers that have a
  // state of their own to it, where `own` are the states of the plan's residual layers from the `first`-th
  // on; describe() appends at most `count` of the others from the `skipped`-th on. `merges`: states of their
  // own exist.
  void merge(uint64_t from, size_t first, std::span<LayerState> own) const;
  void describe(uint64_t from, bool merges, size_t skipped, size_t count, std::vector<LayerState>& out) const;
  uint64_t bytes() const { return floats_ * sizeof(float); }

 private:
  struct Layer {
    uint64_t first = 0;  // within the bucket
    uint32_t own = 0;    // ExactLayer::residual_layer
    uint64_t at = 0;     // of its values among all
    LayerState state;
  };
  LayerValues place_of(const Layer& layer, uint64_t from) const;
  static void add_to(LayerState& own, const Layer& layer, const LayerValues& residual);

  std::vector<Layer> layers_;  // ascending
  uint64_t floats_ = 0;
  bool any_ = false;
};

}  // namespace gradwire::compress
