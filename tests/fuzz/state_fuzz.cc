// Arbitrary bytes as a compression state: refused or taken, alike in pieces of any size, never more memory
// than was admitted; what is taken fits into a bucket and is written as the same bytes, or read again alike
// if an older version has written it.
//
// Input: size of the pieces, whether checksums are put right (a byte each), then the state.
#include <cmath>
#include <vector>

#include "compress/bytes.h"
#include "compress/crc32c.h"
#include "compress/state_format.h"
#include "compress/state_layout.h"
#include "tests/fuzz/input.h"

namespace gradwire::compress {
namespace {

using fuzz::require;
using Bytes = std::vector<std::byte>;

namespace layout = state_layout;

constexpr uint64_t kMostBytes = uint64_t{1} << 20;

bool is_version_1(const Bytes& bytes) {
  return bytes.size() > 12 && bytes[12] == std::byte{1};
}

// Makes every checksum fit, as far as the bytes have the form of a state.
class Sealer {
 public:
  explicit Sealer(Bytes& bytes) : bytes_(bytes) {}

  void seal() {
    if (!record(layout::kHeaderBytes - layout::kCrcBytes)) {
      return;
    }
    const size_t head = is_version_1(bytes_) ? layout::kLayerBytesOfVersion1 : layout::kLayerBytes;
    while (at_ + layout::kEndBytes < bytes_.size()) {
      const uint32_t mark = number(0);
      const uint64_t name = number(4);
      if (mark == layout::kSectionMark) {
        if (!record(layout::kSectionBytes + name)) {
          return;
        }
      } else if (mark != layout::kLayerMark || at_ + head > bytes_.size()) {
        return;
      } else {
        const auto elements = load<uint64_t>(bytes_.data() + at_ + 8);
        const uint64_t pieces = number(layout::kPiecesAt);
        const bool both = number(layout::kPiecesAt + 4) == (layout::kHasResidual | layout::kHasVelocity);
        if (elements > bytes_.size() || !record(head + name + pieces * layout::kPieceBytes) ||
            !record(elements * sizeof(float)) || (both && !record(elements * sizeof(float)))) {
          return;
        }
      }
    }
    if (at_ + layout::kEndBytes == bytes_.size()) {
      store(bytes_.data() + at_ + sizeof(uint32_t), all_);
    }
  }

 private:
  uint32_t number(size_t offset) const { return load<uint32_t>(bytes_.data() + at_ + offset); }
  bool record(uint64_t size) {
    if (size + layout::kCrcBytes > bytes_.size() - at_) {
      return false;
    }
    const auto record = std::span<const std::byte>(bytes_).subspan(at_, size);
    store(bytes_.data() + at_ + size, crc32c(record));
    all_ = crc32c(std::span<const std::byte>(bytes_).subspan(at_ + size, layout::kCrcBytes), all_);
    at_ += size + layout::kCrcBytes;
    return true;
  }

  Bytes& bytes_;
  size_t at_ = 0;
  uint32_t all_ = 0;
};

struct Reading {
  Status status;
  uint64_t admitted = 0;
  StateOrigin origin;
  std::vector<StateSection> sections;
};

Reading read(const Bytes& bytes, size_t piece) {
  Reading reading;
  StateReader reader([&](uint64_t wanted) {
    reading.admitted = wanted;
    return wanted <= kMostBytes ? ok_status() : Status(Code::kResourceExhausted, "too much");
  });
  for (size_t at = 0; at < bytes.size() && reading.status.ok(); at += piece) {
    reading.status = reader.feed(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
  }
  if (reading.status.ok()) {
    reading.status = reader.finish();
  }
  reading.origin = reader.origin();
  reading.sections = reader.take();
  return reading;
}

Bytes write(Reading& reading) {
  StateWriter writer(reading.origin, std::move(reading.sections));
  Bytes bytes(writer.total_bytes());
  require(writer.fill(bytes) == bytes.size() && writer.done(), "it is written at once");
  return bytes;
}

// It fits into a bucket of these layers.
void restore(const StateSection& section) {
  BucketShape shape;
  shape.nodes = 2;
  shape.max_message_bytes = 70000;
  for (const LayerState& layer : section.layers) {
    shape.layers.push_back({layer.name, layer.elements});
  }
  CodecSettings laco;
  laco.codec = "laco";
  laco.dense_below = 64;
  laco.momentum = 0.5;
  const std::vector<CodecSettings> settings(shape.layers.size(), laco);
  auto made = make_compressor(shape, settings);
  require(made.ok(), "its layers are possible");
  require((*made)->restore_state(section.layers) <= section.layers.size(), "no layer is restored twice");
  std::vector<float> kept((*made)->kept_floats());
  (*made)->copy_kept(0, kept);
  for (const float value : kept) {
    require(std::isfinite(value), "neither residual nor momentum is poisoned");
  }
}

}  // namespace
}  // namespace gradwire::compress

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::compress;  // NOLINT(google-build-using-namespace)
  using gradwire::fuzz::require;
  gradwire::fuzz::Input input(data, size);
  const size_t piece = input.number() + size_t{1};
  const bool seal = (input.number() & 1) != 0;
  const auto rest = std::as_bytes(input.rest());
  Bytes bytes(rest.begin(), rest.end());
  if (seal) {
    Sealer(bytes).seal();
  }
  Reading whole = read(bytes, bytes.size() + 1);
  const Reading pieces = read(bytes, piece);
  require(whole.status.code() == pieces.status.code(), "pieces do not matter");
  require(whole.status.message() == pieces.status.message(), "nor to what is said");
  require(whole.admitted == pieces.admitted, "nor to the memory");
  if (!whole.status.ok()) {
    require(!whole.status.message().empty(), "a refusal says why");
    return 0;
  }
  for (const StateSection& section : whole.sections) {
    restore(section);
  }
  const Bytes again = write(whole);
  if (is_version_1(bytes)) {
    Reading newer = read(again, again.size());
    require(newer.status.ok() && write(newer) == again, "an older version is taken over");
  } else {
    require(again == bytes, "there is one form of it");
  }
  return 0;
}
