#include "tests/compress/every_block.h"

#include <cstdlib>
#include <vector>

namespace gradwire::compress {

BucketShape fuzz_shape() {
  BucketShape shape;
  shape.nodes = 2;
  shape.max_message_bytes = 70000;
  for (const FuzzLayer& layer : kFuzzLayers) {
    shape.layers.push_back({"layer", layer.elements});
  }
  return shape;
}

std::vector<CodecSettings> fuzz_settings(bool warm) {
  std::vector<CodecSettings> settings;
  for (const FuzzLayer& layer : kFuzzLayers) {
    CodecSettings& made = settings.emplace_back();
    made.codec = layer.codec;
    made.density = 0.3;
    made.warm_start_steps = warm ? 1000 : 0;
    made.steps_per_octave = layer.steps_per_octave;
    made.rounding = layer.rounding;
  }
  return settings;
}

namespace {

// Memory of exactly the size a call may touch, so that the address sanitizer sees one byte more.
struct Target {
  Target()
      : reducer(std::move(make_compressor(fuzz_shape(), fuzz_settings(false))).value()),
        gradient(kFuzzElements, 0.5F),
        result(kFuzzElements) {}
  std::unique_ptr<BucketReducer> reducer;
  std::vector<float> gradient;
  std::vector<float> result;
};

}  // namespace

FuzzVerdict fuzz_message(uint32_t chunk, uint32_t index, std::span<const std::byte> bytes) {
  static Target target;
  const auto segments = target.reducer->geometry().segments(chunk % 2);
  const Segment& segment = segments[index % segments.size()];
  OperationSettings settings;
  settings.ranks = 2;
  if (!target.reducer->begin(settings).ok()) {
    std::abort();
  }
  const std::vector<const void*> locals = {target.gradient.data()};
  std::vector<std::byte> out(segment.max_bytes);
  FuzzVerdict verdict;
  verdict.decode = target.reducer->decode(segment, bytes, target.result.data()).code();
  if (!bytes.empty()) {
    verdict.hop = target.reducer->hop(segment, bytes, locals, out.data()).status().code();
  }
  target.reducer->abandon();
  return verdict;
}

}  // namespace gradwire::compress
