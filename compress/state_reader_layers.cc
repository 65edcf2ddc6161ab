// The layers of a state: their heads, and the values behind them.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "compress/accumulate.h"
#include "compress/state_format.h"
#include "compress/state_record.h"
#include "config/base/loss_scale.h"
#include "config/base/one_line.h"

namespace gradwire::compress {
namespace {

bool is_measure(double value) {
  return value >= 0 && std::isfinite(value);
}

std::string wrong_piece(const LayerState& layer) {
  uint64_t elements = 0;
  for (const LayerState::Piece& piece : layer.pieces) {
    if (piece.elements == 0 || piece.elements > layer.elements - elements) {
      return "pieces do not have its " + std::to_string(layer.elements) + " elements: one has " +
             std::to_string(piece.elements) + " behind " + std::to_string(elements);
    }
    if (!is_measure(piece.squares)) {
      return "pieces' sums of squares should be finite and not below 0";
    }
    elements += piece.elements;
  }
  return layer.pieces.empty() || elements == layer.elements
             ? ""
             : "pieces have " + std::to_string(elements) + " of its " + std::to_string(layer.elements) +
                   " elements and should have all";
}

// "loss scale is 0 and should be ...": the first number that cannot be. Empty: none.
std::string wrong_number(const LayerState& layer) {
  static constexpr const char* kMeasure = "finite and not below 0";
  struct Number {
    const char* what;
    double value;
    bool fits;
    const char* range;
  };
  const std::array<Number, 7> numbers = {{
      {"loss scale", layer.scale, is_loss_scale(layer.scale), kLossScaleRange},
      {"alpha", layer.alpha, is_measure(layer.alpha), kMeasure},
      {"mean square", layer.mean_square, is_measure(layer.mean_square), kMeasure},
      {"mean sum of squares", layer.squares, is_measure(layer.squares), kMeasure},
      {"threshold", static_cast<double>(layer.threshold), is_measure(static_cast<double>(layer.threshold)),
       kMeasure},
      {"dispersion", layer.dispersion, layer.dispersion >= 0 && layer.dispersion <= 1, "from 0 to 1"},
      {"density", layer.aimed, layer.aimed >= 0 && layer.aimed < 1, "from 0 to below 1"},
  }};
  for (const Number& number : numbers) {
    if (!number.fits) {
      std::array<char, 32> text;
      std::snprintf(text.data(), text.size(), "%.15g", number.value);
      return std::string(number.what) + " is " + text.data() + " and should be " + number.range;
    }
  }
  if (layer.operations > layout::kMaxOperations) {
    return "operations are " + std::to_string(layer.operations) + " and should be at most " +
           std::to_string(layout::kMaxOperations);
  }
  return wrong_piece(layer);
}

}  // namespace

Status StateReader::layer() {
  Numbers numbers(part_);
  const auto mark = numbers.next<uint32_t>();
  const auto name = numbers.next<uint32_t>();
  const auto elements = numbers.next<uint64_t>();
  const auto pieces = load<uint32_t>(part_.data() + layout::kPiecesAt);
  const auto contents = load<uint32_t>(part_.data() + layout::kPiecesAt + sizeof(uint32_t));
  const bool old = layer_bytes_ == layout::kLayerBytesOfVersion1;
  const uint32_t reserved = old ? 0 : load<uint32_t>(part_.data() + layout::kReservedAt);
  if (mark != layout::kLayerMark) {
    return damaged("its mark " + is_not(mark, layout::kLayerMark));
  }
  // Version 1 has a zero there, and residuals only.
  constexpr uint32_t kBoth = layout::kHasResidual | layout::kHasVelocity;
  if (contents > (old ? 0 : kBoth)) {
    return damaged("its contents are " + hex(contents) + " and should be 0" +
                   (old ? "" : " (none), 1 (residual), 2 (momentum) or 3 (both)"));
  }
  const auto arrays = old ? 1U : static_cast<uint32_t>(std::popcount(contents));
  const uint64_t left = arrays == 0      ? layout::kMaxElements
                        : offset_ > end_ ? 0
                                         : (end_ - offset_) / sizeof(float) / arrays;
  if (reserved != 0 || name == 0 || name > layout::kMaxName || elements == 0 ||
      elements > std::min(left, layout::kMaxElements) || pieces > layout::kMaxPieces) {
    return damaged("it has a name of " + std::to_string(name) + " bytes, " + std::to_string(elements) +
                   " elements, " + std::to_string(pieces) + " pieces and reserved bytes of " + hex(reserved) +
                   "; 1 to " + std::to_string(layout::kMaxName) + " bytes, 1 to " +
                   std::to_string(std::min(left, layout::kMaxElements)) + " elements, at most " +
                   std::to_string(layout::kMaxPieces) + " pieces and reserved bytes of 0 can be");
  }
  stage_ = Stage::kLayerName;
  need_ += name + pieces * layout::kPieceBytes + layout::kCrcBytes;
  return ok_status();
}

Status StateReader::layer_name() {
  if (!seal_fits(part_, all_crc_)) {
    return damaged("its checksum " + seal_is_not(part_));
  }
  Numbers numbers(part_, sizeof(uint32_t));
  LayerState layer;
  const auto name = numbers.next<uint32_t>();
  layer.elements = numbers.next<uint64_t>();
  layer.scale = numbers.next<double>();
  layer.alpha = numbers.next<double>();
  layer.mean_square = numbers.next<double>();
  layer.squares = numbers.next<double>();
  layer.operations = numbers.next<uint64_t>();
  layer.pieces.resize(numbers.next<uint32_t>());
  const auto contents = numbers.next<uint32_t>();
  if (layer_bytes_ != layout::kLayerBytesOfVersion1) {
    layer.residual.kept = (contents & layout::kHasResidual) != 0;
    layer.velocity.kept = (contents & layout::kHasVelocity) != 0;
    layer.threshold = numbers.next<float>();
    numbers.next<uint32_t>();
    layer.dispersion = numbers.next<double>();
    layer.aimed = numbers.next<double>();
  }
  layer.name = text_at(part_, layer_bytes_, name);
  Numbers pieces(part_, layer_bytes_ + name);
  for (LayerState::Piece& piece : layer.pieces) {
    piece.elements = pieces.next<uint64_t>();
    piece.squares = pieces.next<double>();
  }
  if (find_control(layer.name)) {
    return damaged(name_is_no_text(layer.name));
  }
  if (const std::string wrong = wrong_number(layer); !wrong.empty()) {
    return damaged("its name is \"" + std::string(beginning(layer.name, 100)) + "\", and its " + wrong);
  }
  sections_.back().layers.push_back(std::move(layer));
  section_layers_left_ -= 1;
  if (current().residual.kept || current().velocity.kept) {
    expect_values();
  } else {
    next_record();
  }
  return ok_status();
}

void StateReader::expect_values() {
  values_ = {};
  values_.reserve(current().elements);
  values_bytes_ = 0;
  values_crc_ = 0;
  expect(Stage::kValues, 0);
}

// Appends as the bytes come: memory is touched only for what has been sent.
size_t StateReader::take_values(std::span<const std::byte> bytes) {
  const uint64_t left = current().elements * sizeof(float) - values_bytes_;
  const auto count = static_cast<size_t>(std::min<uint64_t>(bytes.size(), left));
  const uint64_t end = values_bytes_ + count;
  values_.resize((end + sizeof(float) - 1) / sizeof(float));
  std::byte* const to = std::as_writable_bytes(std::span(values_)).data() + values_bytes_;
  std::memcpy(to, bytes.data(), count);
  values_crc_ = crc32c({to, count}, values_crc_);
  values_bytes_ = end;
  if (count == left) {
    expect(Stage::kValuesCrc, layout::kCrcBytes);
  }
  return count;
}

Status StateReader::values_crc() {
  all_crc_ = crc32c(part_, all_crc_);
  LayerState& layer = current();
  const bool residual = layer.residual.kept && layer.residual.memory == nullptr;
  const std::string what = residual ? "residual" : "momentum";
  if (const auto crc = load<uint32_t>(part_.data()); crc != values_crc_) {
    return damaged("the checksum of its " + what + " " + is_not(crc, values_crc_));
  }
  if (max_magnitude(values_.data(), values_.size()) >= 0x7f800000) {
    return damaged("its " + what + " is not finite");
  }
  (residual ? layer.residual : layer.velocity).memory =
      std::make_shared<const std::vector<float>>(std::move(values_));
  values_ = {};
  if (residual && layer.velocity.kept) {
    expect_values();
  } else {
    next_record();
  }
  return ok_status();
}

}  // namespace gradwire::compress
