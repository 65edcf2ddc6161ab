// What a compressor carries from one operation to the next, and how it gets from one bucket into another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compress/bucket_plan.h"
#include "compress/owed.h"
#include "compress/reducer.h"
#include "compress/sampled.h"

namespace gradwire::compress {

// Zeroed and touched floats on a cache line's boundary, in a vector that can be given away.
class FloatBuffer {
 public:
  explicit FloatBuffer(uint64_t count);
  FloatBuffer(FloatBuffer&&) = default;
  FloatBuffer& operator=(FloatBuffer&&) = default;
  FloatBuffer(const FloatBuffer&) = delete;  // a copy's boundary would be elsewhere
  FloatBuffer& operator=(const FloatBuffer&) = delete;
  float* data() { return memory_.data() + offset_; }
  std::span<const float> view() const { return {memory_.data() + offset_, count_}; }
  size_t offset() const { return offset_; }  // of the first float in what release() gives

  // Afterwards it is empty, but for the offset.
  std::vector<float> release() {
    count_ = 0;
    return std::exchange(memory_, {});
  }

 private:
  std::vector<float> memory_;
  uint64_t count_;
  size_t offset_ = 0;
};

struct Carried {
  explicit Carried(const BucketPlan& plan)
      : residual(plan.has_residual ? plan.elements : 0),
        velocity(plan.has_momentum ? plan.elements : 0),
        piece_squares(plan.pieces.size()),
        layer_squares(plan.layers.size()),
        sampled(plan) {}

  FloatBuffer residual;
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

// Into a bucket that has committed nothing; `earlier` becomes the most operations that a layer has committed,
// and residuals of layers that it sends exactly are owed. A layer whose state makes no sense starts at zero;
// returns how many were found and made sense.
size_t restore_state(std::span<const LayerState> state, BucketPlan& plan, Carried& carried, Owed& owed,
                     uint64_t& earlier);

}  // namespace gradwire::compress
