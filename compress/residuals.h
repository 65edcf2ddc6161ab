// The residuals of a bucket's layers: each layer's in fp32 or, rounded by chance, in bf16.
//
// To the nearest would not do: what a sparse codec holds back of an element piles up there, and a gradient
// below 2^-9 of the pile would never get into it. By chance nothing is lost in the mean, and an operation
// adds an error of less than 2^-7 of the residual to an element, of less than 2^-8 as a root of a mean
// square.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "compress/bucket_plan.h"

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

// Zeroed and touched. What lies where is in the plan's blocks and layers.
struct Residuals {
  explicit Residuals(const BucketPlan& plan) : floats(plan.float_residuals), halves(plan.half_residuals) {}

  uint64_t size() const { return floats.view().size() + halves.size(); }
  uint64_t bytes() const { return floats.view().size_bytes() + halves.size() * sizeof(uint16_t); }
  double square_sum() const;

  FloatBuffer floats;
  std::vector<uint16_t> halves;  // bf16
};

// Copies the values from the `from`-th on out of arrays that lie one behind the other: pass() them all in
// order.
class KeptWindow {
 public:
  KeptWindow(uint64_t from, std::span<float> to) : from_(from), to_(to) {}
  void pass(std::span<const float> values);
  void pass(std::span<const uint16_t> halves);

 private:
  // The run of an array of `size` that is wanted.
  struct Run {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  Run next(uint64_t size);

  uint64_t from_;
  std::span<float> to_;
};

// to = from * factor. False: some of it would not be finite, and `to` is zero.
bool rescale(std::span<const float> from, double factor, float* to);
// What a layer's state says of its controllers, for another loss scale; what only the old one has is left
// out.
void rescale_controllers(double scale, LayerState& state);
bool all_finite(std::span<const float> values);

void widen(std::span<const uint16_t> halves, float* out);
// Finite values. Runs repeat where their keys do.
void narrow(std::span<const float> values, uint64_t key, uint16_t* out);

}  // namespace gradwire::compress
