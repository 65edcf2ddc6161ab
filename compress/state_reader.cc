// The walk through a state, its header, the heads of its buckets and its end; layers are in
// state_reader_layers.cc.
#include <algorithm>
#include <cstring>
#include <new>

#include "compress/state_format.h"
#include "compress/state_record.h"
#include "config/base/one_line.h"

namespace gradwire::compress {
namespace {

constexpr uint64_t kLeastLayer =
    layout::kLayerBytesOfVersion1 + 1 + layout::kCrcBytes + sizeof(float) + layout::kCrcBytes;
constexpr uint64_t kLeastSection = layout::kSectionBytes + layout::kCrcBytes;

}  // namespace

StateReader::StateReader(Admit admit) : admit_(std::move(admit)), need_(layout::kHeaderBytes) {}

// Names have been checked when they are shown.
std::string StateReader::where() const {
  const auto shown = [](const std::string& name) { return "\"" + std::string(beginning(name, 100)) + "\""; };
  switch (stage_) {
    case Stage::kHeader:
      return "in its header";
    case Stage::kSection:
    case Stage::kSectionName:
      return "in the head of bucket " + std::to_string(sections_.size() + 1);
    case Stage::kLayer:
    case Stage::kLayerName:
      return "in the head of layer " + std::to_string(sections_.back().layers.size() + 1) + " of bucket " +
             shown(sections_.back().bucket);
    case Stage::kValues:
    case Stage::kValuesCrc:
      return "in layer " + shown(sections_.back().layers.back().name) + " of bucket " +
             shown(sections_.back().bucket);
    case Stage::kEnd:
    case Stage::kDone:
      break;
  }
  return "at its end";
}

Status StateReader::damaged(const std::string& what) const {
  return Status(Code::kCorrupt, "the compression state is damaged before byte " + std::to_string(offset_) +
                                    ", " + where() + ": " + what + "; take another copy of it");
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
    return damaged("its checksum " + seal_is_not(part_));
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
    return damaged("its mark " + is_not(mark, layout::kSectionMark));
  }
  if (name > layout::kMaxName || section_layers_left_ > layers_left_) {
    return damaged("it has a name of " + std::to_string(name) + " bytes and " +
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
    return damaged("its checksum " + seal_is_not(part_));
  }
  const size_t name = part_.size() - layout::kSectionBytes - layout::kCrcBytes;
  StateSection section;
  section.bucket = text_at(part_, layout::kSectionBytes, name);
  if (find_control(section.bucket)) {
    return damaged(name_is_no_text(section.bucket));
  }
  section.layers.reserve(section_layers_left_);
  sections_.push_back(std::move(section));
  layers_left_ -= section_layers_left_;
  sections_left_ -= 1;
  next_record();
  return ok_status();
}

Status StateReader::end() {
  Numbers numbers(part_);
  if (const auto mark = numbers.next<uint32_t>(); mark != layout::kEndMark) {
    return damaged("its mark " + is_not(mark, layout::kEndMark));
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
        failed_ = Status(Code::kCorrupt, "the compression state ends at byte " + std::to_string(offset_) +
                                             ", and more follows: load nothing but what was saved");
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
