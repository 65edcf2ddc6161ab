#include "compress/lads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "compress/calibration.h"

namespace gradwire::compress {
namespace {

// The schedule of Deep Gradient Compression (Lin et al., ICLR 2018) with a dense stage in front.
constexpr std::array<double, 6> kStages = {1.0, 0.25, 0.0625, 0.015625, 0.004, 0.001};
constexpr uint32_t kTargetReached = 255;
constexpr double kGain = 0.05;
// A layer that never reaches its density (most of it zeros) must find back within some hundred operations.
constexpr double kMinAlpha = 1e-3;
constexpr double kMaxAlpha = 1e3;
// Of a dense operation in the running mean, as norms have.
constexpr double kDispersionWeight = 0.125;

// By multiplications only, for the sake of equal runs.
double power_of(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    result *= exponent % 2 == 1 ? base : 1;
    base *= base;
  }
  return result;
}

// The factor that makes `share` in so many steps; share is below 1.
double root_of(double share, uint64_t steps) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (power_of(middle, steps) < share ? low : high) = middle;
  }
  return high;
}

}  // namespace

LayerControl::LayerControl(const CodecSettings& settings, double target)
    : target_(target),
      cap_factor_(settings.density_cap),
      steps_(settings.warm_start_steps),
      dense_steps_(std::max(1U, settings.warm_start_steps / 5)),
      warm_start_(settings.warm_start),
      current_norm_(settings.norm == NormChoice::kCurrent),
      calibration_(stage(0) == 0 ? calibration_of(settings) : Calibration::kNone) {
  if (warm_start_ == WarmStart::kExponential && steps_ > dense_steps_ && target_ < kStages[1]) {
    decay_ = root_of(target_ / kStages[1], steps_ - dense_steps_);
  }
}

// Sparse rows have a norm of their own, without a share of the zeros; a sum without a residual is no walk.
LayerControl::Calibration LayerControl::calibration_of(const CodecSettings& settings) {
  if (goes_by_fresh_norm(settings)) {
    return settings.error_feedback ? Calibration::kWalk : Calibration::kNone;
  }
  return settings.sparse_rows ? Calibration::kNone : Calibration::kDispersion;
}

uint32_t LayerControl::stage(uint64_t committed) const {
  if (steps_ == 0) {
    return kTargetReached;
  }
  if (warm_start_ == WarmStart::kExponential) {
    return target_ >= 1                                         ? kTargetReached
           : committed < dense_steps_                           ? 0
           : committed < steps_ && decayed(committed) > target_ ? 1
                                                                : kTargetReached;
  }
  const uint64_t stage = committed / steps_;
  return stage < kStages.size() && kStages[stage] > target_ ? static_cast<uint32_t>(stage) : kTargetReached;
}

double LayerControl::decayed(uint64_t committed) const {
  return std::max(target_, kStages[1] * power_of(decay_, committed - dense_steps_));
}

double LayerControl::density(uint64_t committed) const {
  const uint32_t at = stage(committed);
  if (at == kTargetReached) {
    return target_;
  }
  return at > 0 && warm_start_ == WarmStart::kExponential ? decayed(committed) : kStages[at];
}

uint32_t LayerControl::cap(uint32_t elements, double density) const {
  const double most = std::ceil(cap_factor_ * density * elements);
  return static_cast<uint32_t>(std::clamp(most, 1.0, std::max(1.0, static_cast<double>(elements))));
}

void LayerControl::observe(double dispersion) {
  double& mean = state_.dispersion;
  if (dispersion > 0 && dispersion <= 1) {
    mean = mean == 0 ? dispersion : mean + kDispersionWeight * (dispersion - mean);
    shape_ = 0;
    asked_ = {};
  }
}

bool LayerControl::calibrated() const {
  return calibration_ == Calibration::kWalk ||
         (calibration_ == Calibration::kDispersion && state_.dispersion > 0);
}

double LayerControl::calibrated(double density) {
  if (asked_.density == density) {
    return asked_.alpha;
  }
  if (calibration_ == Calibration::kDispersion && shape_ == 0) {
    shape_ = shape_of(state_.dispersion);
  }
  asked_ = {density, calibration_ == Calibration::kWalk ? walk_alpha(density) : shape_alpha(shape_, density)};
  return asked_.alpha;
}

double LayerControl::alpha_for(double density) {
  if (density == state_.aimed || !calibrated()) {
    return state_.alpha;
  }
  return calibrated_ == 0 ? calibrated(density) : state_.alpha * (calibrated(density) / calibrated_);
}

void LayerControl::adjust(double seen, double aimed) {
  const double moved = alpha_for(aimed) * exponential_near_zero(kGain * clipped_log(seen / aimed));
  state_.alpha = std::clamp(moved, kMinAlpha, kMaxAlpha);
  if (state_.aimed != aimed && calibrated()) {
    calibrated_ = calibrated(aimed);
  }
  state_.aimed = aimed;
}

void LayerControl::restore(const State& state) {
  if (state.alpha > 0 && std::isfinite(state.alpha)) {
    state_.alpha = std::clamp(state.alpha, kMinAlpha, kMaxAlpha);
  }
  state_.dispersion = state.dispersion > 0 && state.dispersion <= 1 ? state.dispersion : 0;
  state_.aimed = state.aimed > 0 && state.aimed < 1 ? state.aimed : 0;
  shape_ = 0;
  asked_ = {};
  calibrated_ = state_.aimed > 0 && calibrated() ? calibrated(state_.aimed) : 0;
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
