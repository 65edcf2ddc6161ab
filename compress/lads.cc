#include "compress/lads.h"

#include <algorithm>
#include <array>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>
#include <numbers>

namespace gradwire::compress {
namespace {

// The schedule of Deep Gradient Compression (Lin et al., ICLR 2018) with a dense stage in front.
constexpr std::array<double, 6> kStages = {1.0, 0.25, 0.0625, 0.015625, 0.004, 0.001};
constexpr uint32_t kTargetReached = 255;
constexpr double kGain = 0.05;
// A layer that never reaches its density (most of it zeros) must find back within some hundred operations.
constexpr double kMinAlpha = 1e-3;
constexpr double kMaxAlpha = 1e3;

}  // namespace

LayerControl::LayerControl(const CodecSettings& settings, double target)
    : target_(target),
      cap_factor_(settings.density_cap),
      steps_per_stage_(settings.warm_start_steps),
      current_norm_(settings.norm == NormChoice::kCurrent) {}

uint32_t LayerControl::stage(uint64_t committed) const {
  if (steps_per_stage_ == 0) {
    return kTargetReached;
  }
  const uint64_t stage = committed / steps_per_stage_;
  return stage < kStages.size() && kStages[stage] > target_ ? static_cast<uint32_t>(stage) : kTargetReached;
}

double LayerControl::density(uint64_t committed) const {
  const uint32_t at = stage(committed);
  return at == kTargetReached ? target_ : kStages[at];
}

uint32_t LayerControl::cap(uint32_t elements, double density) const {
  const double most = std::ceil(cap_factor_ * density * elements);
  return static_cast<uint32_t>(std::clamp(most, 1.0, std::max(1.0, static_cast<double>(elements))));
}

void LayerControl::observe(double dispersion) {
  if (dispersion > 0 && dispersion <= 1) {
    dispersion_ = dispersion_ == 0 ? dispersion : dispersion_ + (dispersion - dispersion_) / 8;
  }
}

double LayerControl::alpha_for(double density) const {
  return settled_ || dispersion_ == 0 ? alpha_ : calibrated_alpha(dispersion_, density);
}

void LayerControl::adjust(double seen, double aimed) {
  alpha_ = alpha_for(aimed);
  settled_ = true;
  alpha_ =
      std::clamp(alpha_ * exponential_near_zero(kGain * clipped_log(seen / aimed)), kMinAlpha, kMaxAlpha);
}

void LayerControl::restore(double alpha) {
  if (alpha > 0 && std::isfinite(alpha)) {
    alpha_ = std::clamp(alpha, kMinAlpha, kMaxAlpha);
    settled_ = true;
  }
}

double calibrated_alpha(double dispersion, double density) {
  // mean|x| / rms(x) of the shape beta = 1/n is Gamma(2n) / sqrt(Gamma(n) * Gamma(3n)), which falls with n.
  const auto of_shape = [](double n) {
    return std::exp(std::lgamma(2 * n) - 0.5 * (std::lgamma(n) + std::lgamma(3 * n)));
  };
  double low = 0.25;
  double high = 5;
  for (int i = 0; i < 50; ++i) {
    const double middle = 0.5 * (low + high);
    (of_shape(middle) > dispersion ? low : high) = middle;
  }
  const double n = 0.5 * (low + high);
  const double x = boost::math::gamma_q_inv(n, std::clamp(density, 1e-9, 0.999));
  const double alpha = std::pow(x, n) * std::exp(0.5 * (std::lgamma(n) - std::lgamma(3 * n)));
  return std::clamp(std::round(alpha * 256) / 256, 0.1, 2.4);
}

double clipped_log(double ratio) {
  if (ratio >= std::numbers::e) {
    return 1;
  }
  if (!(ratio * std::numbers::e > 1)) {
    return -1;
  }
  // ln r = 2 artanh((r - 1) / (r + 1)); the argument is below 0.47, so 24 terms leave less than 1e-16.
  const double s = (ratio - 1) / (ratio + 1);
  double power = s;
  double sum = 0;
  for (int n = 1; n < 48; n += 2) {
    sum += power / n;
    power *= s * s;
  }
  return std::clamp(2 * sum, -1.0, 1.0);
}

double exponential_near_zero(double x) {
  double term = 1;
  double sum = 1;
  for (int n = 1; n <= 10; ++n) {
    term *= x / n;
    sum += term;
  }
  return sum;
}

}  // namespace gradwire::compress
