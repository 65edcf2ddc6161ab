// LADS: the density that a sparse layer aims at in an operation, and the loop that keeps it there.
//
// A layer's threshold is alpha times the root mean square of what it sums. The right alpha depends on how the
// residual builds up, and no fixed one is safe, so it follows the density that was seen. After a dense stage
// the first alpha is a calibrated one, and alpha moves by the ratio of calibrated ones whenever another
// density is aimed at. docs/architecture.md.
#pragma once

#include <cstdint>

#include "compress/reducer.h"

namespace gradwire::compress {

// Whether thresholds go by the norm of the fresh gradient of operations before.
constexpr bool goes_by_fresh_norm(const CodecSettings& settings) {
  return settings.norm_of == NormOf::kGradient && settings.norm == NormChoice::kPrevious &&
         !settings.sparse_rows;
}

class LayerControl {
 public:
  // `target` is the layer's own, edge factor included.
  LayerControl(const CodecSettings& settings, double target);

  // The share of elements to send after `committed` operations; 1 means dense.
  double density(uint64_t committed) const;
  // 0 is the dense stage, 1 all of an exponential decay; 255 when the target is reached.
  uint32_t stage(uint64_t committed) const;
  // Most elements of a block of `elements` at that density; at least 1.
  uint32_t cap(uint32_t elements, double density) const;

  // For an operation that aims at `density`, below 1.
  double alpha_for(double density);
  // Dense operations of the warm start are to be observed.
  bool wants_dispersion() const { return calibration_ == Calibration::kDispersion; }
  bool current_norm() const { return current_norm_; }

  // At the commit of a dense operation of the warm start: mean magnitude / root mean square of the values.
  void observe(double dispersion);
  // At a commit: the density that was seen, and the one that was aimed at. alpha moves by at most 5% from
  // alpha_for(aimed).
  void adjust(double seen, double aimed);

  // What goes from bucket to bucket.
  struct State {
    double alpha = 1.7;
    double dispersion = 0;  // running mean over dense operations; 0: none was observed
    double aimed = 0;       // the density that alpha is for; 0: it has not been adjusted
  };
  const State& state() const { return state_; }
  // What is out of its range counts as unknown.
  void restore(const State& state);

 private:
  enum class Calibration : uint8_t { kNone, kDispersion, kWalk };
  static Calibration calibration_of(const CodecSettings& settings);
  bool calibrated() const;
  double calibrated(double density);

  double decayed(uint64_t committed) const;

  double target_;
  double cap_factor_;
  uint32_t steps_;
  uint32_t dense_steps_;
  WarmStart warm_start_;
  double decay_ = 1;  // factor of an operation on the density, of an exponential warm start
  bool current_norm_;
  Calibration calibration_;
  State state_;
  double calibrated_ = 0;  // alpha for state_.aimed; 0: one of both is not known
  // What takes long to compute and was asked for last; 0: nothing.
  double shape_ = 0;  // that follows from state_.dispersion
  struct Asked {
    double density = 0;
    double alpha = 0;
  };
  Asked asked_;
};

// Logarithm and exponential of basic operations only: a mathematical library may round differently from
// machine to machine, and runs are to be replayable.
double clipped_log(double ratio);        // ln(ratio) within [-1, 1]; ratio >= 0
double exponential_near_zero(double x);  // |x| <= 0.1

}  // namespace gradwire::compress
