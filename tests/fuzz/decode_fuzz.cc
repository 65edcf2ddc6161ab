// Arbitrary bytes as a message for every reducer: decode() and hop() refuse or take them, alike where partial
// and finished sums have one form, and touch nothing outside the segment.
//
// Input: kind of reducer, chunk, segment, operation (a byte each), then the message.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "tests/compress/every_block.h"
#include "tests/fuzz/input.h"

namespace gradwire::compress {
namespace {

using fuzz::require;

constexpr uint32_t kNodes = 2;
constexpr std::byte kGuard{0xa5};

std::unique_ptr<BucketReducer> compressor(const char* codec) {
  std::vector<CodecSettings> settings = fuzz_settings(false);
  for (CodecSettings& layer : settings) {
    layer.codec = codec == nullptr ? layer.codec : codec;
  }
  return std::move(make_compressor(fuzz_shape(), settings)).value();
}

// A reducer with memory around which nothing may be written.
struct Target {
  explicit Target(std::unique_ptr<BucketReducer> made)
      : reducer(std::move(made)),
        size(dtype_size(reducer->dtype())),
        gradient(kFuzzElements * size, std::byte{1}),
        result(kFuzzElements * size, kGuard) {}

  std::unique_ptr<BucketReducer> reducer;
  size_t size;
  std::vector<std::byte> gradient;
  std::vector<std::byte> result;
};

std::vector<Target> make_targets() {
  std::vector<Target> targets;
  targets.emplace_back(compressor(nullptr));
  for (const std::string_view name : codec_names()) {
    targets.emplace_back(compressor(name.data()));
  }
  const std::array<uint32_t, 4> rank_chunk = {1, 0, 1, 1};
  for (uint8_t dtype = 0; dtype < 7; ++dtype) {
    targets.emplace_back(std::move(make_exact_reducer(fuzz_shape(), static_cast<Dtype>(dtype))).value());
    targets.emplace_back(
        std::move(make_shard_reducer(fuzz_shape(), static_cast<Dtype>(dtype), rank_chunk)).value());
  }
  return targets;
}

bool only_guards(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == kGuard; });
}

bool decode(Target& target, const Segment& segment, std::span<const std::byte> bytes) {
  const Status decoded = target.reducer->decode(segment, bytes, target.result.data());
  require(decoded.ok() || decoded.code() == Code::kCorrupt, "what is refused is corrupt");
  const auto result = std::span<std::byte>(target.result);
  const size_t begin = segment.first_element * target.size;
  const size_t end = begin + segment.elements * target.size;
  require(only_guards(result.first(begin)) && only_guards(result.subspan(end)),
          "decode stays in its segment");
  std::fill(result.begin() + static_cast<std::ptrdiff_t>(begin),
            result.begin() + static_cast<std::ptrdiff_t>(end), kGuard);
  return decoded.ok();
}

// A hop's output is a message that decodes, also after finish().
bool hop(Target& target, const Segment& segment, std::span<const std::byte> bytes) {
  const std::array<const void*, 1> locals = {target.gradient.data()};
  std::vector<std::byte> out(segment.max_bytes);
  const Result<HopOutcome> done = target.reducer->hop(segment, bytes, locals, out.data());
  require(done.ok() || done.status().code() == Code::kCorrupt, "what is refused is corrupt");
  if (!done.ok()) {
    return false;
  }
  require(done->bytes <= segment.max_bytes, "an encoded segment fits");
  require(done->bytes > 0 || segment.elements == 0, "a segment with elements is not empty");
  const uint32_t finished = target.reducer->finish(segment, out.data(), done->bytes);
  require(finished <= done->bytes, "finishing never lengthens");
  const auto message = std::span<const std::byte>(out).first(finished);
  require(target.reducer->decode(segment, message, target.result.data()).ok(), "what was encoded decodes");
  std::fill(target.result.begin(), target.result.end(), kGuard);
  return true;
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
  const bool decodes = decode(target, segment, bytes);
  const bool hops = hop(target, segment, bytes);
  // Nothing arrives at a first hop; 16-bit sums travel in 32 bits until they are finished, votes as counts.
  if (!bytes.empty() && target.size != sizeof(uint16_t) && target.reducer->codec_name() != "sign") {
    gradwire::fuzz::require(hops == decodes, "decode and hop take the same messages");
  }
  target.reducer->abandon();
  return 0;
}
