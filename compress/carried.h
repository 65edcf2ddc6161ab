// What a compressor carries from one operation to the next, and how it gets from one bucket into another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compress/bucket_plan.h"
#include "compress/owed.h"
#include "compress/reducer.h"
#include "compress/residuals.h"
#include "compress/sampled.h"

namespace gradwire::compress {

struct Carried {
  explicit Carried(const BucketPlan& plan)
      : residual(plan),
        velocity(plan.has_momentum ? plan.elements : 0),
        piece_squares(plan.pieces.size()),
        layer_squares(plan.layers.size()),
        sampled(plan) {}

  Residuals residual;
  FloatBuffer velocity;               // of momentum correction
  std::vector<double> piece_squares;  // running means over committed operations, at `scale`
  std::vector<double> layer_squares;
  SampledThresholds sampled;
  double scale = 0;  // of the last committed operation; 0: none, all above is zero
};

// Moves residual and velocity out: there is no state afterwards. `operations` is how many this bucket has
// committed.
std::vector<LayerState> take_state(const BucketPlan& plan, Carried& carried, uint64_t operations);
// What take_state gives, of at most `count` layers from `first` on, without the values: their `first` counts
// in the residual with the velocity behind it.
std::vector<LayerState> describe_state(const BucketPlan& plan, const Carried& carried, uint64_t operations,
                                       size_t first, size_t count);

// Into a bucket that has committed nothing; residuals of layers that it sends exactly are owed. A layer whose
// state makes no sense starts at zero; returns how many were found and made sense.
size_t restore_state(std::span<const LayerState> state, BucketPlan& plan, Carried& carried, Owed& owed);

}  // namespace gradwire::compress
