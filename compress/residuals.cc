#include "compress/residuals.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compress/accumulate.h"
#include "compress/half.h"
#include "compress/l8.h"

namespace gradwire::compress {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kWideTile = 1024;  // elements

}  // namespace

FloatBuffer::FloatBuffer(uint64_t count) : count_(count) {
  if (count == 0) {
    return;
  }
  memory_.resize(count + kCacheLine / sizeof(float) - 1);
  const auto beyond = reinterpret_cast<uintptr_t>(memory_.data()) % kCacheLine;
  offset_ = beyond == 0 ? 0 : (kCacheLine - beyond) / sizeof(float);
}

double Residuals::square_sum() const {
  double sum = compress::square_sum(floats.view().data(), floats.view().size());
  std::array<float, kWideTile> wide;
  for (size_t begin = 0; begin < halves.size(); begin += kWideTile) {
    const auto tile = std::span(halves).subspan(begin, std::min(kWideTile, halves.size() - begin));
    widen(tile, wide.data());
    sum += compress::square_sum(wide.data(), tile.size());
  }
  return sum;
}

KeptWindow::Run KeptWindow::next(uint64_t size) {
  const uint64_t first = std::min(from_, size);
  from_ -= first;
  return {first, std::min<uint64_t>(to_.size(), size - first)};
}

void KeptWindow::pass(std::span<const float> values) {
  const Run run = next(values.size());
  std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, to_.begin());
  to_ = to_.subspan(run.count);
}

void KeptWindow::pass(std::span<const uint16_t> halves) {
  const Run run = next(halves.size());
  widen(halves.subspan(run.first, run.count), to_.data());
  to_ = to_.subspan(run.count);
}

bool all_finite(std::span<const float> values) {
  return max_magnitude(values.data(), values.size()) < l8::kInfinity;
}

bool rescale(std::span<const float> from, double factor, float* to) {
  if (factor == 1) {
    std::copy(from.begin(), from.end(), to);
    return true;
  }
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = static_cast<float>(static_cast<double>(from[i]) * factor);
  }
  if (all_finite({to, from.size()})) {
    return true;
  }
  std::fill_n(to, from.size(), 0.0F);
  return false;
}

void rescale_controllers(double scale, LayerState& state) {
  const double factor = scale / state.scale;
  state.scale = scale;
  if (factor == 1) {
    return;
  }
  const double mean = state.mean_square * factor * factor;
  const auto threshold = static_cast<float>(static_cast<double>(state.threshold) * factor);
  state.mean_square = std::isfinite(mean) ? mean : 0;
  state.threshold = std::isfinite(threshold) ? threshold : 0;
  state.squares = state.mean_square * static_cast<double>(state.elements);
  state.pieces.clear();
}

void widen(std::span<const uint16_t> halves, float* out) {
  widen_bf16(std::as_bytes(halves).data(), out, halves.size());
}

void narrow(std::span<const float> values, uint64_t key, uint16_t* out) {
  narrow_bf16_by_chance(values.data(), key, reinterpret_cast<std::byte*>(out), values.size());
}

}  // namespace gradwire::compress
