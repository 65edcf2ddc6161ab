// What layers that are sent exactly have left over from times when they were not: their next operation that
// commits takes it along, and then nothing is owed any more. Of a bucket that changes its codec, or takes
// over the layers of one that had another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/reducer.h"

namespace gradwire::compress {

class Owed {
 public:
  // `first`: of the layer, within the bucket; ascending from call to call. The layer's values are shared.
  void add(const LayerState& state, uint64_t first);

  bool any() const { return any_; }
  // What `count` elements from `first` on owe, at the loss scale `scale`; 0 where nothing.
  void fill(uint64_t first, uint64_t count, double scale, float* out) const;
  double square_sum() const;  // each layer's at its own scale
  void settle() { any_ = false; }

  // What is owed, as layers for another bucket; of what was settled only how its controllers stood. Nothing
  // is left.
  std::vector<LayerState> take();
  // What has values: how many floats they are, the values one after the other, and at most `count` of the
  // layers from the `skipped`-th on without them (LayerValues::first from `from` on).
  uint64_t floats() const;
  std::vector<std::span<const float>> values() const;
  std::vector<LayerState> described(uint64_t from, size_t skipped, size_t count) const;

 private:
  struct Layer {
    uint64_t first = 0;
    LayerState state;
  };
  std::vector<Layer> layers_;  // ascending
  bool any_ = false;
};

}  // namespace gradwire::compress
