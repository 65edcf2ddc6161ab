#include <algorithm>
#include <cstring>
#include <utility>

#include "compress/bytes.h"
#include "compress/crc32c.h"
#include "compress/state_format.h"
#include "compress/state_layout.h"

namespace gradwire::compress {

namespace layout = state_layout;

namespace {

template <typename T>
void put(std::vector<std::byte>& to, T value) {
  const size_t at = to.size();
  to.resize(at + sizeof(value));
  store(to.data() + at, value);
}

void put_text(std::vector<std::byte>& to, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

uint64_t bytes_of(const StateSection& section) {
  uint64_t bytes = layout::kSectionBytes + section.bucket.size() + layout::kCrcBytes;
  for (const LayerState& layer : section.layers) {
    const uint64_t arrays = (layer.residual.kept ? 1 : 0) + (layer.velocity.kept ? 1 : 0);
    bytes += layout::kLayerBytes + layer.name.size() + layout::kPieceBytes * layer.pieces.size() +
             layout::kCrcBytes + arrays * (layer.elements * sizeof(float) + layout::kCrcBytes);
  }
  return bytes;
}

bool lacks(const LayerValues& values) {
  return values.kept && values.memory == nullptr;
}

std::span<const std::byte> bytes_of(const LayerState& layer, const LayerValues& values) {
  return values.kept ? std::as_bytes(std::span(*values.memory).subspan(values.first, layer.elements))
                     : std::span<const std::byte>();
}

}  // namespace

StateWriter::StateWriter(const StateOrigin& origin, std::vector<StateSection> sections)
    : sections_(std::move(sections)) {
  uint64_t payload = layout::kEndBytes;
  uint64_t layers = 0;
  for (const StateSection& section : sections_) {
    payload += bytes_of(section);
    layers += section.layers.size();
  }
  total_ = layout::kHeaderBytes + payload;
  put_text(head_, std::string(layout::kMagic.data(), layout::kMagic.size()));
  put(head_, layout::kByteOrder);
  put(head_, layout::kVersion);
  put(head_, payload);
  put(head_, layers);
  put(head_, origin.epoch);
  put(head_, static_cast<uint32_t>(sections_.size()));
  put(head_, origin.nodes);
  put(head_, origin.node_index);
  put(head_, origin.world);
  put(head_, uint32_t{0});
  seal();
}

void StateWriter::note(uint32_t crc) {
  all_crc_ = crc32c(std::as_bytes(std::span(&crc, 1)), all_crc_);
}

void StateWriter::seal() {
  const uint32_t crc = crc32c(head_);
  put(head_, crc);
  note(crc);
}

std::optional<size_t> StateWriter::wants() const {
  if (next_ != Next::kSection || at_ < head_.size() || section_ == sections_.size()) {
    return std::nullopt;
  }
  const auto& layers = sections_[section_].layers;
  const bool some = std::any_of(layers.begin(), layers.end(), [](const LayerState& layer) {
    return lacks(layer.residual) || lacks(layer.velocity);
  });
  return some ? std::optional(section_) : std::nullopt;
}

void StateWriter::supply(const std::shared_ptr<const std::vector<float>>& values) {
  for (LayerState& layer : sections_[section_].layers) {
    for (LayerValues* each : {&layer.residual, &layer.velocity}) {
      each->memory = each->kept ? values : nullptr;
    }
  }
}

void StateWriter::begin_section(const StateSection& section) {
  put(head_, layout::kSectionMark);
  put(head_, static_cast<uint32_t>(section.bucket.size()));
  put(head_, static_cast<uint32_t>(section.layers.size()));
  put_text(head_, section.bucket);
  seal();
}

void StateWriter::begin_layer(const LayerState& layer) {
  put(head_, layout::kLayerMark);
  put(head_, static_cast<uint32_t>(layer.name.size()));
  put(head_, layer.elements);
  put(head_, layer.scale);
  put(head_, layer.alpha);
  put(head_, layer.mean_square);
  put(head_, layer.squares);
  put(head_, layer.operations);
  put(head_, static_cast<uint32_t>(layer.pieces.size()));
  put(head_,
      (layer.residual.kept ? layout::kHasResidual : 0) | (layer.velocity.kept ? layout::kHasVelocity : 0));
  put(head_, layer.threshold);
  put(head_, uint32_t{0});
  put(head_, layer.dispersion);
  put(head_, layer.aimed);
  put_text(head_, layer.name);
  for (const LayerState::Piece& piece : layer.pieces) {
    put(head_, piece.elements);
    put(head_, piece.squares);
  }
  seal();
  values_ = bytes_of(layer, layer.residual);
  then_ = bytes_of(layer, layer.velocity);
  if (values_.empty()) {
    values_ = std::exchange(then_, {});
  }
  values_crc_ = 0;
}

// Puts the next record into head_.
void StateWriter::produce() {
  head_.clear();
  at_ = 0;
  if (next_ == Next::kLayer && layer_ < sections_[section_].layers.size()) {
    begin_layer(sections_[section_].layers[layer_++]);
    return;
  }
  if (next_ == Next::kLayer) {
    sections_[section_++].layers.clear();  // with its residuals
    next_ = Next::kSection;
    return;
  }
  if (section_ < sections_.size()) {
    begin_section(sections_[section_]);
    layer_ = 0;
    next_ = Next::kLayer;
    return;
  }
  put(head_, layout::kEndMark);
  put(head_, all_crc_);
  next_ = Next::kNothing;
}

size_t StateWriter::fill(std::span<std::byte> out) {
  size_t written = 0;
  while (written < out.size() && !done()) {
    const size_t room = out.size() - written;
    if (at_ < head_.size()) {
      const size_t count = std::min(room, head_.size() - at_);
      std::memcpy(out.data() + written, head_.data() + at_, count);
      at_ += count;
      written += count;
    } else if (!values_.empty()) {
      const size_t count = std::min(room, values_.size());
      std::memcpy(out.data() + written, values_.data(), count);
      values_crc_ = crc32c(values_.first(count), values_crc_);
      values_ = values_.subspan(count);
      written += count;
      if (values_.empty()) {
        head_.clear();
        at_ = 0;
        put(head_, values_crc_);
        note(values_crc_);
        values_ = std::exchange(then_, {});
        values_crc_ = 0;
      }
    } else if (wants()) {
      break;
    } else {
      produce();
    }
  }
  return written;
}

}  // namespace gradwire::compress
