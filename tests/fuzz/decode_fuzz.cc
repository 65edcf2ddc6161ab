// Arbitrary bytes as a message for every reducer: decode() and hop() refuse or take them, alike, and touch
// nothing outside the segment.
//
// Input: kind of reducer, chunk, segment, operation (a byte each), then the message.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "compress/reducer.h"
#include "tests/fuzz/input.h"

namespace gradwire::compress {
namespace {

using fuzz::require;

constexpr uint32_t kNodes = 2;
constexpr std::array<uint64_t, 8> kLayers = {3000, 5, 4097, 1, 9001, 1, 2500, 63};
constexpr uint64_t kElements = 18668;
constexpr std::byte kGuard{0xa5};

BucketShape shape() {
  BucketShape shape;
  shape.nodes = kNodes;
  shape.max_message_bytes = 70000;
  for (const uint64_t elements : kLayers) {
    shape.layers.push_back({"layer", elements});
  }
  return shape;
}

std::unique_ptr<BucketReducer> compressor(std::span<const char* const> codecs) {
  std::vector<CodecSettings> settings;
  for (size_t i = 0; i < kLayers.size(); ++i) {
    CodecSettings layer;
    layer.codec = codecs[i % codecs.size()];
    layer.density = 0.3;
    layer.warm_start_steps = 0;
    settings.push_back(layer);
  }
  return std::move(make_compressor(shape(), settings)).value();
}

// A reducer with memory around which nothing may be written.
struct Target {
  explicit Target(std::unique_ptr<BucketReducer> made)
      : reducer(std::move(made)),
        size(dtype_size(reducer->dtype())),
        gradient(kElements * size, std::byte{1}),
        result(kElements * size, kGuard) {}

  std::unique_ptr<BucketReducer> reducer;
  size_t size;
  std::vector<std::byte> gradient;
  std::vector<std::byte> result;
};

std::vector<Target> make_targets() {
  static constexpr const char* kMixed[] = {"laco", "none", "l8", "laco", "lads", "lads", "laco", "none"};
  std::vector<Target> targets;
  targets.emplace_back(compressor(kMixed));
  for (const std::string_view name : codec_names()) {
    const char* const codec = name.data();
    targets.emplace_back(compressor({&codec, 1}));
  }
  const std::array<uint32_t, 4> rank_chunk = {1, 0, 1, 1};
  for (uint8_t dtype = 0; dtype < 7; ++dtype) {
    targets.emplace_back(std::move(make_exact_reducer(shape(), static_cast<Dtype>(dtype))).value());
    targets.emplace_back(
        std::move(make_shard_reducer(shape(), static_cast<Dtype>(dtype), rank_chunk)).value());
  }
  return targets;
}

bool only_guards(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == kGuard; });
}

void decode(Target& target, const Segment& segment, std::span<const std::byte> bytes) {
  const Status decoded = target.reducer->decode(segment, bytes, target.result.data());
  require(decoded.ok() || decoded.code() == Code::kCorrupt, "what is refused is corrupt");
  const auto result = std::span<std::byte>(target.result);
  const size_t begin = segment.first_element * target.size;
  const size_t end = begin + segment.elements * target.size;
  require(only_guards(result.first(begin)) && only_guards(result.subspan(end)),
          "decode stays in its segment");
  std::fill(result.begin() + static_cast<std::ptrdiff_t>(begin),
            result.begin() + static_cast<std::ptrdiff_t>(end), kGuard);
}

// A hop's output is a message that decodes, also after finish().
void hop(Target& target, const Segment& segment, std::span<const std::byte> bytes) {
  const std::array<const void*, 1> locals = {target.gradient.data()};
  std::vector<std::byte> out(segment.max_bytes);
  const Result<HopOutcome> done = target.reducer->hop(segment, bytes, locals, out.data());
  require(done.ok() || done.status().code() == Code::kCorrupt, "what is refused is corrupt");
  if (!done.ok()) {
    return;
  }
  require(done->bytes <= segment.max_bytes, "an encoded segment fits");
  require(done->bytes > 0 || segment.elements == 0, "a segment with elements is not empty");
  const uint32_t finished = target.reducer->finish(segment, out.data(), done->bytes);
  require(finished <= done->bytes, "finishing never lengthens");
  const auto message = std::span<const std::byte>(out).first(finished);
  require(target.reducer->decode(segment, message, target.result.data()).ok(), "what was encoded decodes");
  std::fill(target.result.begin(), target.result.end(), kGuard);
}

}  // namespace
}  // namespace gradwire::compress

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::compress;  // NOLINT(google-build-using-namespace)
  static std::vector<Target> targets = make_targets();
  gradwire::fuzz::Input input(data, size);
  Target& target = targets[input.number() % targets.size()];
  const auto segments = target.reducer->geometry().segments(input.number() % kNodes);
  const Segment& segment = segments[input.number() % segments.size()];
  OperationSettings settings;
  settings.ranks = 2;
  settings.op = static_cast<ReduceOp>(input.number() % 5);
  if (!target.reducer->begin(settings).ok()) {
    settings.op = ReduceOp::kSum;
    gradwire::fuzz::require(target.reducer->begin(settings).ok(), "every reducer sums");
  }
  const auto bytes = std::as_bytes(input.rest());
  decode(target, segment, bytes);
  hop(target, segment, bytes);
  target.reducer->abandon();
  return 0;
}
