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

}  // namespace

LayerControl::LayerControl(const CodecSettings& settings, double target)
    : target_(target),
      cap_factor_(settings.density_cap),
      steps_per_stage_(settings.warm_start_steps),
      current_norm_(settings.norm == NormChoice::kCurrent),
      calibration_(stage(0) == 0 ? calibration_of(settings) : Calibration::kNone) {}

// Sparse rows have a norm of their own, without a share of the zeros; a sum without a residual is no walk.
LayerControl::Calibration LayerControl::calibration_of(const CodecSettings& settings) {
  if (goes_by_fresh_norm(settings)) {
    return settings.error_feedback ? Calibration::kWalk : Calibration::kNone;
  }
  return settings.sparse_rows ? Calibration::kNone : Calibration::kDispersion;
}

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
  double& mean = state_.dispersion;
  if (dispersion > 0 && dispersion <= 1) {
    mean = mean == 0 ? dispersion : mean + kDispersionWeight * (dispersion - mean);
  }
}

double LayerControl::calibrated(double density) const {
  return calibration_ == Calibration::kWalk ? walk_alpha(density)
                                            : calibrated_alpha(state_.dispersion, density);
}

double LayerControl::alpha_for(double density) const {
  if (calibration_ == Calibration::kNone || density == state_.aimed ||
      (calibration_ == Calibration::kDispersion && state_.dispersion == 0)) {
    return state_.alpha;
  }
  return state_.aimed == 0 ? calibrated(density)
                           : state_.alpha * (calibrated(density) / calibrated(state_.aimed));
}

void LayerControl::adjust(double seen, double aimed) {
  const double moved = alpha_for(aimed) * exponential_near_zero(kGain * clipped_log(seen / aimed));
  state_.alpha = std::clamp(moved, kMinAlpha, kMaxAlpha);
  state_.aimed = aimed;
}

void LayerControl::restore(const State& state) {
  if (state.alpha > 0 && std::isfinite(state.alpha)) {
    state_.alpha = std::clamp(state.alpha, kMinAlpha, kMaxAlpha);
  }
  state_.dispersion = state.dispersion > 0 && state.dispersion <= 1 ? state.dispersion : 0;
  state_.aimed = state.aimed > 0 && state.aimed < 1 ? state.aimed : 0;
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
