#include "compress/calibration.h"

#include <algorithm>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>

namespace gradwire::compress {
namespace {

// Of the shape beta = 1/n; falls with n.
double dispersion_of(double n) {
  using boost::math::lgamma;
  return std::exp(lgamma(2 * n) - 0.5 * (lgamma(n) + lgamma(3 * n)));
}

}  // namespace

double shape_of(double dispersion) {
  const double rounded = std::round(dispersion * 1024) / 1024;
  double low = 0.25;
  double high = 5;
  for (int i = 0; i < 50; ++i) {
    const double middle = 0.5 * (low + high);
    (dispersion_of(middle) > rounded ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double shape_alpha(double shape, double density) {
  using boost::math::lgamma;
  const double x = boost::math::gamma_q_inv(shape, std::clamp(density, 1e-9, 0.999));
  const double alpha = std::pow(x, shape) * std::exp(0.5 * (lgamma(shape) - lgamma(3 * shape)));
  return std::clamp(std::round(alpha * 256) / 256, 0.1, 2.4);
}

double walk_alpha(double density) {
  return 1 / std::sqrt(density) - 0.583;
}

}  // namespace gradwire::compress
