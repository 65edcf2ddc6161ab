#include "compress/residuals.h"

#include <algorithm>
#include <array>

#include "compress/accumulate.h"
#include "compress/half.h"

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

void widen(std::span<const uint16_t> halves, float* out) {
  widen_bf16(std::as_bytes(halves).data(), out, halves.size());
}

void narrow(std::span<const float> values, uint64_t key, uint16_t* out) {
  narrow_bf16_by_chance(values.data(), key, reinterpret_cast<std::byte*>(out), values.size());
}

}  // namespace gradwire::compress
