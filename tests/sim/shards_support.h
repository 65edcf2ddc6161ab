// For the tests of allgather and reduce_scatter: values of any element type as small whole numbers, and what
// the operations must make of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {

inline constexpr compress::Dtype kAllDtypes[] = {compress::Dtype::kFloat32,  compress::Dtype::kFloat16,
                                                 compress::Dtype::kBfloat16, compress::Dtype::kFloat64,
                                                 compress::Dtype::kInt32,    compress::Dtype::kInt64,
                                                 compress::Dtype::kUint8};

// Whole numbers from 0 to 255 are exact in every type.
inline void put(Region& region, compress::Dtype dtype, size_t at, uint32_t value) {
  switch (dtype) {
    case compress::Dtype::kFloat32:
      region.as<float>()[at] = static_cast<float>(value);
      return;
    case compress::Dtype::kFloat16: {
      const int exponent = std::bit_width(value) - 1;
      region.as<uint16_t>()[at] =
          value == 0 ? uint16_t{0}
                     : static_cast<uint16_t>((exponent + 15) << 10 | ((value << (10 - exponent)) & 0x3ff));
      return;
    }
    case compress::Dtype::kBfloat16:
      region.as<uint16_t>()[at] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
      return;
    case compress::Dtype::kFloat64:
      region.as<double>()[at] = value;
      return;
    case compress::Dtype::kInt32:
      region.as<int32_t>()[at] = static_cast<int32_t>(value);
      return;
    case compress::Dtype::kInt64:
      region.as<int64_t>()[at] = value;
      return;
    case compress::Dtype::kUint8:
      region.as<uint8_t>()[at] = static_cast<uint8_t>(value);
      return;
  }
}

inline double get(Region& region, compress::Dtype dtype, size_t at) {
  switch (dtype) {
    case compress::Dtype::kFloat32:
      return region.as<float>()[at];
    case compress::Dtype::kFloat16: {
      const uint16_t bits = region.as<uint16_t>()[at];
      const int exponent = (bits >> 10) & 31;
      const int mantissa = bits & 0x3ff;
      if (exponent == 31) {
        return std::nan("");
      }
      return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 0x400, exponent - 25);
    }
    case compress::Dtype::kBfloat16:
      return std::bit_cast<float>(uint32_t{region.as<uint16_t>()[at]} << 16);
    case compress::Dtype::kFloat64:
      return region.as<double>()[at];
    case compress::Dtype::kInt32:
      return region.as<int32_t>()[at];
    case compress::Dtype::kInt64:
      return static_cast<double>(region.as<int64_t>()[at]);
    case compress::Dtype::kUint8:
      return region.as<uint8_t>()[at];
  }
  return 0;
}

// What rank `rank` submits: at most 6, so that a sum over 32 ranks is exact in every type.
inline uint32_t value_of(compress::ReduceOp op, uint32_t rank, uint32_t step, size_t at) {
  const auto value = static_cast<uint32_t>((at * 5 + rank * 3 + step * 4) % 7);
  return op == compress::ReduceOp::kProduct ? (value == 3 && rank < 7 ? 2 : 1) : value;
}

inline double reduced(compress::ReduceOp op, uint32_t world, uint32_t step, size_t at) {
  double result = value_of(op, 0, step, at);
  for (uint32_t rank = 1; rank < world; ++rank) {
    const double value = value_of(op, rank, step, at);
    switch (op) {
      case compress::ReduceOp::kSum:
      case compress::ReduceOp::kAverage:
        result += value;
        break;
      case compress::ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case compress::ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case compress::ReduceOp::kProduct:
        result *= value;
        break;
    }
  }
  return op == compress::ReduceOp::kAverage ? result / world : result;
}

inline void fill_rank(Cluster& cluster, uint32_t rank, uint32_t bucket, compress::Dtype dtype,
                      compress::ReduceOp op, uint32_t step) {
  Region& region = *cluster.rank(rank).gradients[bucket];
  const size_t elements = region.size() / compress::dtype_size(dtype);
  for (size_t at = 0; at < elements; ++at) {
    put(region, dtype, at, value_of(op, rank, step, at));
  }
}

// The result of `request` on one node, as far as it is defined.
inline void expect_result(Cluster& cluster, uint32_t node, uint32_t bucket, compress::Dtype dtype,
                          const Request& request, uint32_t step) {
  Region& region = *cluster.node(node).results[bucket];
  const size_t elements = region.size() / compress::dtype_size(dtype);
  const size_t shard = elements / cluster.world();
  for (size_t at = 0; at < elements; ++at) {
    const auto rank = static_cast<uint32_t>(shard == 0 ? 0 : at / shard);
    double expected = 0;
    if (request.operation == layout::kOpAllreduce) {
      expected = reduced(request.reduce_op, cluster.world(), step, at);
    } else if (request.operation == layout::kOpBroadcast) {
      expected = value_of(request.reduce_op, request.root, step, at);
    } else if (request.operation == layout::kOpAllgather) {
      expected = value_of(request.reduce_op, rank, step, at);
    } else if (cluster.rank(rank).node == node) {
      expected = reduced(request.reduce_op, cluster.world(), step, at);
    } else {
      continue;
    }
    const double tolerance = request.reduce_op == compress::ReduceOp::kAverage ? expected / 128 : 0;
    ASSERT_NEAR(get(region, dtype, at), expected, tolerance)
        << "node " << node << " of " << cluster.nodes() << ", bucket " << bucket << ", operation "
        << int{request.operation} << ", reduction " << static_cast<int>(request.reduce_op) << ", dtype "
        << static_cast<int>(dtype) << ", element " << at << " of " << elements;
  }
}

inline ClusterOptions shard_options(uint32_t nodes, uint32_t locals, uint64_t seed) {
  ClusterOptions options;
  options.nodes = nodes;
  options.local_ranks = locals;
  options.network.seed = seed;
  options.network.jitter_ns = seed % 3 == 0 ? 0 : 100'000;
  options.network.max_payload = 70'000;
  options.network.send_window = 1 + seed % 3;
  return options;
}

inline BucketShape shard_shape(uint64_t elements, compress::Dtype dtype) {
  BucketShape shape;
  shape.name = "shards";
  shape.layers = {elements / 3, elements - elements / 3};
  shape.dtype = dtype;
  return shape;
}

}  // namespace gradwire::sim
