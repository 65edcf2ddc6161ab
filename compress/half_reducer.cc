#include "compress/half_reducer.h"

#include <algorithm>
#include <array>

#include "compress/half.h"
#include "compress/plain_reducer.h"
#include "compress/raw_kernels.h"

namespace gradwire::compress {
namespace {

constexpr size_t kHalfTile = 1024;  // elements; 4 KiB of fp32 stay in the first cache

using Widen = void (*)(const std::byte*, float*, size_t);
using Narrow = void (*)(const float*, float, std::byte*, size_t);

// (arrived op g1) op g2 ..., as raw::hop(), over gradients of 16 bits.
template <ReduceOp op>
bool hop_halves(Widen widen, const std::byte* arrived, std::span<const void* const> locals, uint64_t first,
                size_t count, std::byte* out) {
  if (locals.empty()) {
    return raw::hop<op, float>(arrived, locals, first, count, out);
  }
  std::array<float, kHalfTile> wide;
  bool bad = false;
  for (size_t begin = 0; begin < count; begin += kHalfTile) {
    const size_t tile = std::min(kHalfTile, count - begin);
    std::byte* const to = out + begin * sizeof(float);
    const std::byte* sum = arrived == nullptr ? nullptr : arrived + begin * sizeof(float);
    bool tile_bad = false;
    for (const void* local : locals) {
      widen(static_cast<const std::byte*>(local) + (first + begin) * 2, wide.data(), tile);
      const auto* const terms = reinterpret_cast<const std::byte*>(wide.data());
      tile_bad = sum == nullptr ? raw::copy_bytes<op, float>(terms, to, tile)
                                : raw::combine_bytes<op, float>(sum, terms, to, tile);
      sum = to;
    }
    bad |= tile_bad;
  }
  return bad;
}

class HalfReducer final : public PlainReducer {
 public:
  HalfReducer(Dtype dtype, Geometry geometry)
      : PlainReducer(dtype, std::move(geometry)),
        widen_(dtype == Dtype::kFloat16 ? &widen_fp16 : &widen_bf16),
        narrow_(dtype == Dtype::kFloat16 ? &narrow_fp16 : &narrow_bf16) {}

  Status begin(const OperationSettings& settings) override {
    divisor_ = settings.op == ReduceOp::kAverage ? static_cast<float>(settings.ranks) : 1.0F;
    return choose(settings, [this](auto op) { hop_ = &hop_halves<op()>; });
  }

  Result<HopOutcome> hop(const Segment& segment, std::span<const std::byte> arrived,
                         std::span<const void* const> locals, std::byte* out) override {
    if (!arrived.empty()) {
      GRADWIRE_RETURN_IF_ERROR(check_size(segment, arrived.size(), kHalfHopBytes, "partial sums"));
    }
    HopOutcome outcome;
    outcome.bytes = static_cast<uint32_t>(segment.elements * kHalfHopBytes);
    outcome.not_finite = hop_(widen_, arrived.empty() ? nullptr : arrived.data(), locals,
                              segment.first_element, segment.elements, out);
    return outcome;
  }

  // An element's 2 bytes end before the next element's 4 begin, so every tile can be written over its own.
  uint32_t finish(const Segment& segment, std::byte* bytes, uint32_t /*size*/) override {
    std::array<float, kHalfTile> sums;
    for (uint64_t begin = 0; begin < segment.elements; begin += kHalfTile) {
      const size_t tile = std::min<uint64_t>(kHalfTile, segment.elements - begin);
      std::memcpy(sums.data(), bytes + begin * kHalfHopBytes, tile * kHalfHopBytes);
      narrow_(sums.data(), divisor_, bytes + begin * 2, tile);
    }
    return static_cast<uint32_t>(segment.elements * 2);
  }

  Status decode(const Segment& segment, std::span<const std::byte> bytes, void* result) override {
    GRADWIRE_RETURN_IF_ERROR(check_size(segment, bytes.size(), 2, "16-bit floats"));
    if (!bytes.empty()) {
      std::memcpy(static_cast<std::byte*>(result) + segment.first_element * 2, bytes.data(), bytes.size());
    }
    return ok_status();
  }

  void poison(void* result, uint64_t first, uint64_t count) const override {
    std::fill_n(static_cast<uint16_t*>(result) + first, count,
                dtype() == Dtype::kFloat16 ? Float16::kNan : Bfloat16::kNan);
  }

 private:
  Widen widen_;
  Narrow narrow_;
  float divisor_ = 1;
  bool (*hop_)(Widen, const std::byte*, std::span<const void* const>, uint64_t, size_t,
               std::byte*) = &hop_halves<ReduceOp::kSum>;
};

}  // namespace

std::unique_ptr<BucketReducer> make_half_reducer(Dtype dtype, Geometry geometry) {
  return std::make_unique<HalfReducer>(dtype, std::move(geometry));
}

}  // namespace gradwire::compress
