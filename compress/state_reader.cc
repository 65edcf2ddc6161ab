#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>

#include "compress/accumulate.h"
#include "compress/bytes.h"
#include "compress/crc32c.h"
#include "compress/state_format.h"
#include "compress/state_layout.h"
#include "config/base/loss_scale.h"
#include "config/base/one_line.h"

namespace gradwire::compress {

namespace layout = state_layout;

namespace {

constexpr uint64_t kLeastLayer =
    layout::kLayerBytesOfVersion1 + 1 + layout::kCrcBytes + sizeof(float) + layout::kCrcBytes;
constexpr uint64_t kLeastSection = layout::kSectionBytes + layout::kCrcBytes;

// Reads numbers one after the other out of a record.
class Numbers {
 public:
  explicit Numbers(const std::vector<std::byte>& bytes, size_t from = 0) : at_(bytes.data() + from) {}
  template <typename T>
  T next() {
    const T value = load<T>(at_);
    at_ += sizeof(T);
    return value;
  }

 private:
  const std::byte* at_;
};

std::string text_at(const std::vector<std::byte>& bytes, size_t from, size_t count) {
  return {reinterpret_cast<const char*>(bytes.data()) + from, count};
}

bool is_measure(double value) {
  return value >= 0 && std::isfinite(value);
}

bool makes_sense(const LayerState& layer) {
  uint64_t elements = 0;
  for (const LayerState::Piece& piece : layer.pieces) {
    if (piece.elements == 0 || piece.elements > layer.elements - elements || !is_measure(piece.squares)) {
      return false;
    }
    elements += piece.elements;
  }
  return is_loss_scale(layer.scale) && is_measure(layer.alpha) && is_measure(layer.mean_square) &&
         is_measure(layer.squares) && is_measure(layer.threshold) && is_measure(layer.dispersion) &&
         layer.dispersion <= 1 && is_measure(layer.aimed) && layer.aimed < 1 &&
         layer.operations <= layout::kMaxOperations && (layer.pieces.empty() || elements == layer.elements);
}

std::string hex(uint32_t value) {
  std::array<char, 11> text;
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    std::array<char, 4> two;
    std::snprintf(two.data(), two.size(), "%02x", static_cast<unsigned>(byte));
    text.append(text.empty() ? "" : " ").append(two.data());
  }
  return text;
}

// "is 0x00000002 and should be 0x0a0b0c0d".
std::string is_not(uint32_t found, uint32_t expected) {
  return "is " + hex(found) + " and should be " + hex(expected);
}

// The same of the checksum that a record ends with.
std::string seal_is_not(const std::vector<std::byte>& record) {
  const auto bytes = std::span(record);
  return is_not(load<uint32_t>(bytes.last(layout::kCrcBytes).data()),
                crc32c(bytes.first(bytes.size() - layout::kCrcBytes)));
}

bool seal_fits(const std::vector<std::byte>& record, uint32_t& all_crc) {
  const auto bytes = std::span(record);
  const auto crc = load<uint32_t>(bytes.last(layout::kCrcBytes).data());
  all_crc = crc32c(bytes.last(layout::kCrcBytes), all_crc);
  return crc == crc32c(bytes.first(bytes.size() - layout::kCrcBytes));
}

}  // namespace

StateReader::StateReader(Admit admit) : admit_(std::move(admit)), need_(layout::kHeaderBytes) {}

std::string StateReader::where() const {
  if (sections_.empty()) {
    return "its header";
  }
  const StateSection& section = sections_.back();
  std::string bucket = "bucket \"" + std::string(beginning(section.bucket, 100)) + "\"";
  if (section.layers.empty() || stage_ == Stage::kSection || stage_ == Stage::kSectionName) {
    return bucket;
  }
  return "layer \"" + std::string(beginning(section.layers.back().name, 100)) + "\" of " + bucket;
}

Status StateReader::damaged(const std::string& what) const {
  return Status(Code::kCorrupt, "the compression state is damaged before byte " + std::to_string(offset_) +
                                    ", in " + where() + ": " + what + "; take another copy of it");
}

void StateReader::expect(Stage stage, size_t bytes) {
  stage_ = stage;
  part_.clear();
  need_ = bytes;
}

// After a section's head or a layer's end.
void StateReader::next_record() {
  if (section_layers_left_ > 0) {
    expect(Stage::kLayer, layer_bytes_);
  } else if (sections_left_ > 0) {
    expect(Stage::kSection, layout::kSectionBytes);
  } else {
    expect(Stage::kEnd, layout::kEndBytes);
  }
}

Status StateReader::header() {
  if (std::memcmp(part_.data(), layout::kMagic.data(), layout::kMagic.size()) != 0) {
    return Status(Code::kCorrupt, "this is not a compression state: it begins with the bytes " +
                                      hex(std::span(part_).first(layout::kMagic.size())) +
                                      " and should begin with " +
                                      hex(std::as_bytes(std::span(layout::kMagic))) +
                                      " (GWSTATE); load what gw_state_save has written, from its beginning");
  }
  Numbers numbers(part_, layout::kMagic.size());
  if (const auto order = numbers.next<uint32_t>(); order != layout::kByteOrder) {
    return damaged("the mark of its byte order " + is_not(order, layout::kByteOrder));
  }
  const auto version = numbers.next<uint32_t>();
  if (version < layout::kOldestVersion || version > layout::kVersion) {
    return Status(Code::kUnsupported,
                  "the compression state has version " + std::to_string(version) +
                      " and this gradwired reads versions " + std::to_string(layout::kOldestVersion) +
                      " to " + std::to_string(layout::kVersion) + ": " +
                      (version > layout::kVersion ? "update gradwired" : "take another copy of it"));
  }
  layer_bytes_ = version == 1 ? layout::kLayerBytesOfVersion1 : layout::kLayerBytes;
  const auto payload = numbers.next<uint64_t>();
  layers_left_ = numbers.next<uint64_t>();
  origin_.epoch = numbers.next<uint64_t>();
  sections_left_ = numbers.next<uint32_t>();
  origin_.nodes = numbers.next<uint32_t>();
  origin_.node_index = numbers.next<uint32_t>();
  origin_.world = numbers.next<uint32_t>();
  const auto reserved = numbers.next<uint32_t>();
  if (!seal_fits(part_, all_crc_)) {
    return damaged("the header's checksum " + seal_is_not(part_));
  }
  if (reserved != 0) {
    return damaged("its reserved bytes 56 to 59 are " + hex(reserved) + " and should be 0");
  }
  if (payload > UINT64_MAX / 4 || layers_left_ > payload / kLeastLayer ||
      sections_left_ > payload / kLeastSection) {
    return damaged("its numbers of layers and bytes contradict each other: " + std::to_string(layers_left_) +
                   " layers in " + std::to_string(sections_left_) + " buckets take more than the " +
                   std::to_string(payload) + " bytes that it says follow it");
  }
  end_ = layout::kHeaderBytes + payload;
  const uint64_t held = payload + layers_left_ * sizeof(LayerState) + sections_left_ * sizeof(StateSection);
  if (admit_) {
    GRADWIRE_RETURN_IF_ERROR(admit_(held));
  }
  next_record();
  return ok_status();
}

Status StateReader::section() {
  Numbers numbers(part_);
  const auto mark = numbers.next<uint32_t>();
  const auto name = numbers.next<uint32_t>();
  section_layers_left_ = numbers.next<uint32_t>();
  if (mark != layout::kSectionMark) {
    return damaged("where the next bucket should begin there is something else: its mark " +
                   is_not(mark, layout::kSectionMark));
  }
  if (name > layout::kMaxName || section_layers_left_ > layers_left_) {
    return damaged("the bucket after it has a name of " + std::to_string(name) + " bytes and " +
                   std::to_string(section_layers_left_) + " layers; at most " +
                   std::to_string(layout::kMaxName) + " bytes and the " + std::to_string(layers_left_) +
                   " layers that are left can be");
  }
  stage_ = Stage::kSectionName;
  need_ += name + layout::kCrcBytes;
  return ok_status();
}

Status StateReader::section_name() {
  if (!seal_fits(part_, all_crc_)) {
    return damaged("the checksum of the bucket after it " + seal_is_not(part_));
  }
  const size_t name = part_.size() - layout::kSectionBytes - layout::kCrcBytes;
  StateSection section;
  section.bucket = text_at(part_, layout::kSectionBytes, name);
  if (find_control(section.bucket)) {
    return damaged("a bucket's name is not text");
  }
  section.layers.reserve(section_layers_left_);
  sections_.push_back(std::move(section));
  layers_left_ -= section_layers_left_;
  sections_left_ -= 1;
  next_record();
  return ok_status();
}

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
    return damaged("where the next layer should begin there is something else: its mark " +
                   is_not(mark, layout::kLayerMark));
  }
  // Version 1 has a zero there, and residuals only.
  constexpr uint32_t kBoth = layout::kHasResidual | layout::kHasVelocity;
  if (contents > (old ? 0 : kBoth)) {
    return damaged("the contents of the layer after it are " + hex(contents) + " and should be 0" +
                   (old ? "" : " (none), 1 (residual), 2 (momentum) or 3 (both)"));
  }
  const auto arrays = old ? 1U : static_cast<uint32_t>(std::popcount(contents));
  const uint64_t left = arrays == 0      ? layout::kMaxElements
                        : offset_ > end_ ? 0
                                         : (end_ - offset_) / sizeof(float) / arrays;
  if (reserved != 0 || name == 0 || name > layout::kMaxName || elements == 0 ||
      elements > std::min(left, layout::kMaxElements) || pieces > layout::kMaxPieces) {
    return damaged("the layer after it has a name of " + std::to_string(name) + " bytes, " +
                   std::to_string(elements) + " elements, " + std::to_string(pieces) +
                   " pieces and reserved bytes of " + hex(reserved) + "; 1 to " +
                   std::to_string(layout::kMaxName) + " bytes, 1 to " +
                   std::to_string(std::min(left, layout::kMaxElements)) + " elements, at most " +
                   std::to_string(layout::kMaxPieces) + " pieces and reserved bytes of 0 can be");
  }
  stage_ = Stage::kLayerName;
  need_ += name + pieces * layout::kPieceBytes + layout::kCrcBytes;
  return ok_status();
}

Status StateReader::layer_name() {
  if (!seal_fits(part_, all_crc_)) {
    return damaged("the checksum of the layer after it " + seal_is_not(part_));
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
  const bool sensible = makes_sense(layer) && !find_control(layer.name);
  sections_.back().layers.push_back(std::move(layer));
  if (!sensible) {
    return damaged("its numbers make no sense");
  }
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

Status StateReader::end() {
  Numbers numbers(part_);
  if (const auto mark = numbers.next<uint32_t>(); mark != layout::kEndMark) {
    return damaged("the mark of its end " + is_not(mark, layout::kEndMark));
  }
  if (const auto crc = numbers.next<uint32_t>(); crc != all_crc_) {
    return damaged("the checksum of all of it " + is_not(crc, all_crc_));
  }
  if (layers_left_ != 0 || offset_ != end_) {
    return damaged("it ends at byte " + std::to_string(offset_) + " with " + std::to_string(layers_left_) +
                   " of its layers missing, and should end at byte " + std::to_string(end_) + " with none");
  }
  expect(Stage::kDone, 0);
  return ok_status();
}

Status StateReader::step() {
  switch (stage_) {
    case Stage::kHeader:
      return header();
    case Stage::kSection:
      return section();
    case Stage::kSectionName:
      return section_name();
    case Stage::kLayer:
      return layer();
    case Stage::kLayerName:
      return layer_name();
    case Stage::kValuesCrc:
      return values_crc();
    case Stage::kEnd:
      return end();
    case Stage::kValues:
    case Stage::kDone:
      break;
  }
  return ok_status();
}

Status StateReader::feed(std::span<const std::byte> bytes) {
  try {
    while (failed_.ok() && !bytes.empty()) {
      size_t count = 0;
      if (stage_ == Stage::kDone) {
        failed_ = damaged("something follows its end");
        break;
      }
      if (stage_ == Stage::kValues) {
        count = take_values(bytes);
        offset_ += count;
      } else {
        count = std::min(bytes.size(), need_ - part_.size());
        part_.insert(part_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
        offset_ += count;
        if (part_.size() == need_) {
          failed_ = step();
        }
      }
      bytes = bytes.subspan(count);
    }
  } catch (const std::bad_alloc&) {
    failed_ = Status(Code::kResourceExhausted, "no memory for the compression state's residuals");
  }
  return failed_;
}

Status StateReader::finish() const {
  GRADWIRE_RETURN_IF_ERROR(failed_);
  return stage_ == Stage::kDone
             ? ok_status()
             : Status(Code::kCorrupt, "the compression state ends at byte " + std::to_string(offset_) +
                                          (end_ == 0 ? "" : " of " + std::to_string(end_)) +
                                          ": it was cut off; take another copy of it");
}

}  // namespace gradwire::compress
