// The end of an operation: residuals, norms and controllers move on.
#include <algorithm>
#include <cmath>
#include <utility>

#include "compress/accumulate.h"
#include "compress/compressor.h"

namespace gradwire::compress {
namespace {

// Weight of an operation's squares in the running mean that later thresholds go by. The last operation's norm
// alone makes rings of three and more nodes swing with period two: a dense step fills the sums of the next
// nodes, their norms rise, and the step after is sparse (Gaussian gradients, 4 nodes at 1%: 2.6% and 0.35% in
// turns, half as many bytes again as the target; with an eighth about 1%, and 1.07% at 16 nodes).
constexpr double kNormWeight = 0.125;

}  // namespace

void Compressor::follow(double& mean, double squares) const {
  const double before = mean * (static_cast<double>(factor_) * factor_);
  mean = before > 0 ? before + kNormWeight * (squares - before) : squares;
}

// Sums go block by block, piece by piece: the same in every run.
void Compressor::settle_layer(uint32_t index) {
  SparseLayer& layer = plan_.layers[index];
  double squares = 0;
  double dispersion = 0;
  uint64_t sent = 0;
  for (uint32_t p = layer.first_piece; p < layer.first_piece + layer.pieces; ++p) {
    const SparsePiece& piece = plan_.pieces[p];
    double piece_sum = 0;
    double piece_magnitudes = 0;
    for (uint32_t b = piece.first_block; b < piece.first_block + piece.blocks; ++b) {
      piece_sum += layer.norm_of == NormOf::kGradient ? records_[b].fresh_squares : records_[b].square_sum;
      piece_magnitudes += records_[b].magnitude_sum;
      sent += records_[b].sent;
    }
    // A piece's threshold goes by its own norm, and along the ring the norms of pieces grow.
    if (piece_sum > 0) {
      const auto elements = static_cast<double>(piece.elements);
      dispersion += piece_magnitudes * std::sqrt(elements / piece_sum);
    }
    follow(carried_.piece_squares[p], piece_sum);
    squares += piece_sum;
  }
  follow(carried_.layer_squares[index], squares);
  // A dense operation says nothing about alpha, nor does one in which there was nothing to send.
  if (layer.selection == Selection::kRms && aimed_[index] < 1 && squares > 0) {
    layer.control.adjust(static_cast<double>(sent) / static_cast<double>(layer.elements), aimed_[index]);
  } else if (measures(index)) {
    layer.control.observe(std::min(1.0, dispersion / static_cast<double>(layer.elements)));
  }
}

bool Compressor::measures(uint32_t index) const {
  const SparseLayer& layer = plan_.layers[index];
  return layer.selection == Selection::kRms && layer.control.wants_dispersion() && aimed_[index] >= 1 &&
         !flush_;
}

void Compressor::commit() {
  // A flush sums what held back gradients have piled up to: later steps do not look like that.
  for (uint32_t i = 0; i < plan_.layers.size() && !flush_; ++i) {
    settle_layer(i);
  }
  if (flush_ && factor_ != 1) {
    const double squared = static_cast<double>(factor_) * factor_;
    std::for_each(carried_.piece_squares.begin(), carried_.piece_squares.end(),
                  [squared](double& mean) { mean *= squared; });
    std::for_each(carried_.layer_squares.begin(), carried_.layer_squares.end(),
                  [squared](double& mean) { mean *= squared; });
  }
  double residual_sum = 0;
  uint64_t sent = 0;
  for (const BlockRecord& record : records_) {
    residual_sum += record.residual_sum;
    sent += record.sent;
  }
  std::swap(carried_.residual, next_);
  std::swap(carried_.velocity, next_velocity_);
  carried_.scale = scale_;
  owed_.settle();
  stats_.operations += 1;
  const double factor = static_cast<double>(factor_);
  carried_.sampled.settle(plan_, scale_, factor, flush_, [this](uint32_t layer) {
    return std::min(1.0, plan_.layers[layer].control.density(committed(plan_.layers[layer])));
  });
  stats_.density =
      plan_.elements == 0 ? 1.0 : static_cast<double>(sent) / static_cast<double>(plan_.elements);
  stats_.residual_norm = std::sqrt(residual_sum);
  stats_.warm_stage = warm_stage();
}

uint64_t Compressor::committed(const SparseLayer& layer) const {
  return plan_.residual_layers[layer.residual_layer].earlier + stats_.operations;
}

uint32_t Compressor::warm_stage() const {
  uint32_t least = 255;
  for (const SparseLayer& layer : plan_.layers) {
    least = std::min(least, layer.control.stage(committed(layer)));
  }
  return least;
}

}  // namespace gradwire::compress
