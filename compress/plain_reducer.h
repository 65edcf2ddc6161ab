// What the exact reducers have in common: no residuals, and bytes that follow from the number of elements.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "compress/reducer.h"

namespace gradwire::compress {

class PlainReducer : public BucketReducer {
 public:
  PlainReducer(Dtype dtype, Geometry geometry) : dtype_(dtype), geometry_(std::move(geometry)) {}

  const Geometry& geometry() const final { return geometry_; }
  Dtype dtype() const final { return dtype_; }
  std::string_view codec_name() const final { return "none"; }
  void commit() final { ++operations_; }
  void abandon() final {}
  CompressionStats stats() const final {
    CompressionStats stats;
    stats.operations = operations_;
    stats.warm_stage = 255;
    return stats;
  }

 protected:
  // Hands the arithmetic of the operation to `take`, as a std::integral_constant: an average is a sum.
  template <typename Take>
  static Status choose(const OperationSettings& settings, Take take) {
    if (settings.ranks < 1) {
      return {Code::kInvalidArgument, "an operation needs at least 1 rank, not 0"};
    }
    switch (settings.op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        take(std::integral_constant<ReduceOp, ReduceOp::kSum>());
        return ok_status();
      case ReduceOp::kMin:
        take(std::integral_constant<ReduceOp, ReduceOp::kMin>());
        return ok_status();
      case ReduceOp::kMax:
        take(std::integral_constant<ReduceOp, ReduceOp::kMax>());
        return ok_status();
      case ReduceOp::kProduct:
        take(std::integral_constant<ReduceOp, ReduceOp::kProduct>());
        return ok_status();
    }
    return {Code::kInvalidArgument, "operation " + std::to_string(static_cast<int>(settings.op)) +
                                        " does not exist; use 0 (sum) to 4 (product)"};
  }

  // `what`: "raw elements", for the sentence.
  static Status check_size(const Segment& segment, size_t size, uint64_t element_bytes, const char* what) {
    const uint64_t expected = segment.elements * element_bytes;
    if (size == expected) {
      return ok_status();
    }
    return {Code::kCorrupt, "a segment of " + std::to_string(segment.elements) + " " + what + " came with " +
                                std::to_string(size) + " bytes instead of " + std::to_string(expected)};
  }

 private:
  Dtype dtype_;
  Geometry geometry_;
  uint64_t operations_ = 0;
};

}  // namespace gradwire::compress
