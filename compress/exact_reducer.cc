#include <functional>
#include <limits>
#include <new>

#include "compress/geometry.h"
#include "compress/half_reducer.h"
#include "compress/plain_reducer.h"
#include "compress/raw_kernels.h"
#include "compress/reducer.h"

namespace gradwire::compress {
namespace {

constexpr std::string_view integer_name(Dtype dtype) {
  return dtype == Dtype::kInt32 ? "int32" : dtype == Dtype::kInt64 ? "int64" : "uint8";
}

template <typename T>
class ExactReducer final : public PlainReducer {
 public:
  using PlainReducer::PlainReducer;

  Status begin(const OperationSettings& settings) override {
    divide_ = settings.op == ReduceOp::kAverage;
    if (divide_ && std::is_integral_v<T>) {
      return {Code::kInvalidArgument,
              "the average of " + std::string(integer_name(dtype())) + " is not an integer; ask for the sum"};
    }
    if constexpr (std::floating_point<T>) {
      inverse_ = static_cast<T>(1) / static_cast<T>(settings.ranks);
    }
    return choose(settings, [this](auto op) { hop_ = &raw::hop<op(), T>; });
  }

  Result<HopOutcome> hop(const Segment& segment, std::span<const std::byte> arrived,
                         std::span<const void* const> locals, std::byte* out) override {
    if (!arrived.empty()) {
      GRADWIRE_RETURN_IF_ERROR(check_size(segment, arrived.size(), sizeof(T), "raw elements"));
    }
    HopOutcome outcome;
    outcome.bytes = static_cast<uint32_t>(segment.elements * sizeof(T));
    outcome.not_finite = hop_(arrived.empty() ? nullptr : arrived.data(), locals, segment.first_element,
                              segment.elements, out);
    return outcome;
  }

  Status decode(const Segment& segment, std::span<const std::byte> bytes, void* result) override {
    GRADWIRE_RETURN_IF_ERROR(check_size(segment, bytes.size(), sizeof(T), "raw elements"));
    T* const to = static_cast<T*>(result) + segment.first_element;
    if (divide_) {
      raw::scale_bytes(bytes.data(), inverse_, to, segment.elements);
    } else if (!bytes.empty()) {
      std::memcpy(to, bytes.data(), bytes.size());
    }
    return ok_status();
  }

  void poison(void* result, uint64_t first, uint64_t count) const override {
    if constexpr (std::floating_point<T>) {
      std::fill_n(static_cast<T*>(result) + first, count, std::numeric_limits<T>::quiet_NaN());
    }
  }

 private:
  bool divide_ = false;
  T inverse_ = 1;
  bool (*hop_)(const std::byte*, std::span<const void* const>, uint64_t, size_t,
               std::byte*) = &raw::hop<ReduceOp::kSum, T>;
};

// Geometry of the elements for a number of bytes each.
using Cut = std::function<Geometry(uint64_t)>;

template <typename T>
std::unique_ptr<BucketReducer> make(Dtype dtype, const Cut& cut) {
  return std::make_unique<ExactReducer<T>>(dtype, cut(sizeof(T)));
}

Result<std::unique_ptr<BucketReducer>> make_reducer(uint64_t elements, Dtype dtype, const Cut& cut) {
  try {
    switch (dtype) {
      case Dtype::kFloat32:
        return make<float>(dtype, cut);
      case Dtype::kFloat64:
        return make<double>(dtype, cut);
      case Dtype::kInt32:
        return make<int32_t>(dtype, cut);
      case Dtype::kInt64:
        return make<int64_t>(dtype, cut);
      case Dtype::kUint8:
        return make<uint8_t>(dtype, cut);
      case Dtype::kFloat16:
      case Dtype::kBfloat16:
        return make_half_reducer(dtype, cut(kHalfHopBytes));
    }
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "no memory for the tables of a bucket of " +
                                                std::to_string(elements) + " elements; use a smaller one");
  }
  return Status(Code::kInvalidArgument,
                "data type " + std::to_string(static_cast<int>(dtype)) + " does not exist; use 0 to 6");
}

}  // namespace

Result<std::unique_ptr<BucketReducer>> make_exact_reducer(const BucketShape& shape, Dtype dtype) {
  const Result<uint64_t> elements = checked_elements(shape);
  if (!elements.ok()) {
    return elements.status();
  }
  return make_reducer(*elements, dtype,
                      [&](uint64_t element_bytes) { return cut_raw(*elements, element_bytes, shape); });
}

Result<std::unique_ptr<BucketReducer>> make_shard_reducer(const BucketShape& shape, Dtype dtype,
                                                          std::span<const uint32_t> rank_chunk) {
  const Result<uint64_t> elements = checked_elements(shape);
  if (!elements.ok()) {
    return elements.status();
  }
  GRADWIRE_RETURN_IF_ERROR(check_shards(*elements, shape.nodes, rank_chunk));
  return make_reducer(*elements, dtype, [&](uint64_t element_bytes) {
    return cut_shards(*elements, element_bytes, shape, rank_chunk);
  });
}

}  // namespace gradwire::compress
