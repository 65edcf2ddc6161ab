// LinearCost: what something costs as A + B * size, from measurements.
//
// Weighted least squares in which every new measurement makes the older ones count less. Plain values; not
// thread-safe. Neither A nor B becomes negative: where the best line has a negative one, that one is zero.
#pragma once

#include <optional>

namespace gradwire::planner {

struct Line {
  double fixed_ns = 0;  // A
  double unit_ns = 0;   // B: a byte's or an element's
  double at(double size) const { return fixed_ns + unit_ns * size; }
};

class LinearCost {
 public:
  // `keep` in (0, 1]: the weight of what was known, each time that something is added.
  explicit LinearCost(double keep = 0.9) : keep_(keep) {}

  // False: nonsense, which is not taken in (not finite, negative, a size beyond 2^50 or more than an hour).
  bool add(double size, double ns);
  // None before measurements of two sizes that differ.
  std::optional<Line> line() const;

 private:
  double keep_;
  double weight_ = 0, size_ = 0, ns_ = 0;  // weighted sums
  double size_size_ = 0, size_ns_ = 0;
};

}  // namespace gradwire::planner
