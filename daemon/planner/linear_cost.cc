#include "daemon/planner/linear_cost.h"

#include <cmath>

namespace gradwire::planner {
namespace {

constexpr double kLargestSize = 0x1p50;
constexpr double kLongest = 3.6e12;  // ns

bool sensible(double value, double most) {
  return std::isfinite(value) && value >= 0 && value <= most;
}

}  // namespace

bool LinearCost::add(double size, double ns) {
  if (!sensible(size, kLargestSize) || !sensible(ns, kLongest)) {
    return false;
  }
  for (double* const sum : {&weight_, &size_, &ns_, &size_size_, &size_ns_}) {
    *sum *= keep_;
  }
  weight_ += 1;
  size_ += size;
  ns_ += ns;
  size_size_ += size * size;
  size_ns_ += size * ns;
  return true;
}

std::optional<Line> LinearCost::line() const {
  const double spread = weight_ * size_size_ - size_ * size_;
  if (spread <= 1e-9 * weight_ * size_size_) {  // one size only, but for rounding
    return std::nullopt;
  }
  const double slope = (weight_ * size_ns_ - size_ * ns_) / spread;
  const double fixed = (ns_ - slope * size_) / weight_;
  if (slope < 0) {
    return Line{ns_ / weight_, 0};
  }
  if (fixed < 0) {
    return Line{0, size_ns_ / size_size_};
  }
  return Line{fixed, slope};
}

}  // namespace gradwire::planner
