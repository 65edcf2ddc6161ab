// LADS: the density that a sparse layer aims at in an operation, and the loop that keeps it there.
//
// A layer's threshold is alpha times the root mean square of what it sums. The right alpha depends on how the
// residual builds up, and no fixed one is safe, so it follows the density that was seen.
// docs/architecture.md.
#pragma once

#include <cstdint>

#include "compress/reducer.h"

namespace gradwire::compress {

class LayerControl {
 public:
  // `target` is the layer's own, edge factor included.
  LayerControl(const CodecSettings& settings, double target);

  // The share of elements to send after `committed` operations; 1 means dense.
  double density(uint64_t committed) const;
  // 0 is the dense stage; 255 when the target is reached.
  uint32_t stage(uint64_t committed) const;
  // Most elements of a block of `elements` at that density; at least 1.
  uint32_t cap(uint32_t elements, double density) const;

  double alpha() const { return alpha_; }
  bool current_norm() const { return current_norm_; }

  // At a commit: the density that was seen, and the one that was aimed at. alpha moves by at most 5%.
  void adjust(double seen, double aimed);
  // Goes on from another bucket's alpha; one that is not positive and finite changes nothing.
  void restore(double alpha);

 private:
  double target_;
  double cap_factor_;
  uint32_t steps_per_stage_;
  bool current_norm_;
  double alpha_ = 1.7;
};

// Logarithm and exponential of basic operations only: a mathematical library may round differently from
// machine to machine, and runs are to be replayable.
double clipped_log(double ratio);        // ln(ratio) within [-1, 1]; ratio >= 0
double exponential_near_zero(double x);  // |x| <= 0.1

}  // namespace gradwire::compress
