// Buckets of float gradients for a LoopbackRing: shapes, random gradients, results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "tests/compress/loopback_ring.h"

namespace gradwire::compress {

inline BucketShape shape_of(const std::vector<uint64_t>& sizes, uint32_t nodes,
                            uint32_t max_message_bytes = 130048) {
  BucketShape shape;
  shape.nodes = nodes;
  shape.max_message_bytes = max_message_bytes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    shape.layers.push_back({"layer" + std::to_string(i), sizes[i]});
  }
  return shape;
}

inline uint64_t elements_of(const BucketShape& shape) {
  uint64_t total = 0;
  for (const Layer& layer : shape.layers) {
    total += layer.elements;
  }
  return total;
}

inline CodecSettings codec(std::string name, double density = 0.01, uint32_t warm_start_steps = 0) {
  CodecSettings settings;
  settings.codec = std::move(name);
  settings.density = density;
  settings.warm_start_steps = warm_start_steps;
  return settings;
}

// Draws that follow from the seed.
class Gauss {
 public:
  explicit Gauss(uint32_t seed, float sigma = 1) : random_(seed), normal_(0, sigma) {}
  float operator()() { return normal_(random_); }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

inline std::vector<float> gauss(size_t count, float sigma = 1) {
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), Gauss(11, sigma));
  return values;
}

// A ring of one reducer a node, made by `make` from the shape of that node.
template <typename Make>
LoopbackRing ring_of(BucketShape shape, Make make) {
  std::vector<std::unique_ptr<BucketReducer>> nodes;
  for (shape.node = 0; shape.node < shape.nodes; ++shape.node) {
    auto made = make(shape);
    EXPECT_TRUE(made.ok()) << made.status().message();
    nodes.push_back(std::move(made).value());
  }
  return LoopbackRing(std::move(nodes));
}

inline LoopbackRing compressed_ring(const BucketShape& shape, const std::vector<CodecSettings>& settings) {
  return ring_of(shape, [&](const BucketShape& place) { return make_compressor(place, settings); });
}

inline LoopbackRing compressed_ring(const BucketShape& shape, const CodecSettings& settings) {
  return compressed_ring(shape, std::vector<CodecSettings>(shape.layers.size(), settings));
}

// Gradients of every rank and results of every node; the vectors keep their addresses.
struct RingBuffers {
  RingBuffers(const BucketShape& shape, uint32_t ranks_per_node)
      : gradients(shape.nodes,
                  std::vector<std::vector<float>>(ranks_per_node, std::vector<float>(elements_of(shape)))),
        results(shape.nodes, std::vector<float>(elements_of(shape), -1.0F)) {}

  std::vector<std::vector<const void*>> locals() const {
    std::vector<std::vector<const void*>> all;
    for (const auto& node : gradients) {
      std::vector<const void*>& ranks = all.emplace_back();
      for (const auto& gradient : node) {
        ranks.push_back(gradient.data());
      }
    }
    return all;
  }

  std::vector<void*> result_starts() {
    std::vector<void*> all;
    for (auto& result : results) {
      all.push_back(result.data());
    }
    return all;
  }

  template <typename Draw>
  void fill(Draw draw) {
    for (auto& node : gradients) {
      for (auto& gradient : node) {
        for (float& value : gradient) {
          value = draw();
        }
      }
    }
  }

  uint32_t ranks() const {
    return static_cast<uint32_t>(gradients.size() * (gradients.empty() ? 0 : gradients[0].size()));
  }

  bool results_equal() const {
    for (const auto& result : results) {
      if (!result.empty() &&
          std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::vector<std::vector<float>>> gradients;  // [node][local rank][element]
  std::vector<std::vector<float>> results;                 // [node][element]
};

inline OperationSettings operation(ReduceOp op, uint32_t ranks, double scale = 1.0) {
  OperationSettings settings;
  settings.op = op;
  settings.ranks = ranks;
  settings.scale = scale;
  return settings;
}

// A step of float gradients, which all nodes must agree on; false: it was not finite.
inline bool run_sum(LoopbackRing& ring, RingBuffers& buffers, double scale = 1.0) {
  const auto done =
      ring.run(operation(ReduceOp::kSum, buffers.ranks(), scale), buffers.locals(), buffers.result_starts());
  EXPECT_TRUE(done.ok()) << done.status().message();
  EXPECT_TRUE(buffers.results_equal());
  return done.ok() && *done;
}

// Operations of a bucket of T on a ring with two ranks a node.
template <typename T>
class PairRing {
 public:
  PairRing(LoopbackRing ring, const BucketShape& shape, T blank = {})
      : ring_(std::move(ring)),
        gradients_(shape.nodes * 2, std::vector<T>(elements_of(shape))),
        results_(shape.nodes, std::vector<T>(elements_of(shape), blank)) {}

  Result<bool> run(ReduceOp op) {
    std::vector<std::vector<const void*>> locals;
    std::vector<void*> results;
    for (size_t i = 0; i < results_.size(); ++i) {
      locals.push_back({gradients_[2 * i].data(), gradients_[2 * i + 1].data()});
      results.push_back(results_[i].data());
    }
    return ring_.run(operation(op, static_cast<uint32_t>(gradients_.size())), locals, results);
  }

  std::vector<std::vector<T>>& gradients() { return gradients_; }
  const std::vector<std::vector<T>>& results() const { return results_; }

 protected:
  LoopbackRing ring_;

 private:
  std::vector<std::vector<T>> gradients_;  // [rank][element]
  std::vector<std::vector<T>> results_;    // [node][element]
};

}  // namespace gradwire::compress
