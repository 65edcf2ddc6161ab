// Residuals and controllers by layer: what a compressor leaves behind, another one goes on from.
#include <cmath>
#include <limits>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

struct Parameter {
  std::string name;
  uint64_t elements;
  CodecSettings settings;
};

// Parameters in buckets that can be rebuilt, on every node of a ring; each node's state stays on its node.
class Training {
 public:
  explicit Training(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
    for (const Parameter& p : parameters_) {
      sums_.emplace_back(p.elements);
      applied_.emplace_back(p.elements);
      bound_.emplace_back(p.elements);
    }
  }

  void build(uint32_t nodes, std::vector<std::vector<size_t>> buckets) {
    std::vector<std::vector<LayerState>> state(std::max<size_t>(nodes, nodes_));
    for (auto& bucket : built_) {
      for (size_t n = 0; n < bucket.ring.size(); ++n) {
        auto taken = bucket.ring.node(n).take_state();
        std::move(taken.begin(), taken.end(), std::back_inserter(state[n]));
      }
    }
    built_.clear();
    nodes_ = nodes;
    for (auto& members : buckets) {
      BucketShape shape;
      shape.nodes = nodes;
      shape.max_message_bytes = 70000;
      std::vector<CodecSettings> settings;
      for (const size_t p : members) {
        shape.layers.push_back({parameters_[p].name, parameters_[p].elements});
        settings.push_back(parameters_[p].settings);
      }
      built_.push_back({std::move(members), compressed_ring(shape, settings), RingBuffers(shape, 2)});
      for (uint32_t n = 0; n < nodes; ++n) {
        restored_ += built_.back().ring.node(n).restore_state(state[n]);
      }
    }
  }

  void step(std::mt19937& random, double scale = 1.0) {
    std::normal_distribution<float> normal;
    for (Built& bucket : built_) {
      bucket.buffers.fill([&] { return normal(random) * static_cast<float>(scale); });
      const auto done = bucket.ring.run(operation(ReduceOp::kSum, bucket.buffers.ranks(), scale),
                                        bucket.buffers.locals(), bucket.buffers.result_starts());
      ASSERT_TRUE(done.ok()) << done.status().message();
      ASSERT_TRUE(*done);
      ASSERT_TRUE(bucket.buffers.results_equal());
      record(bucket, scale);
    }
    scale_ = scale;
  }

  void check() {
    const double eps = std::numeric_limits<float>::epsilon();
    for (Built& bucket : built_) {
      uint64_t at = 0;
      for (const size_t p : bucket.members) {
        for (uint64_t i = 0; i < parameters_[p].elements; ++i, ++at) {
          double held = applied_[p][i];
          for (size_t n = 0; n < bucket.ring.size(); ++n) {
            held += residual(bucket.ring, n, at) / scale_;
          }
          ASSERT_NEAR(held, sums_[p][i], eps * bound_[p][i] + 1e-30) << parameters_[p].name << " " << i;
        }
      }
    }
  }

  LoopbackRing& ring(size_t bucket) { return built_[bucket].ring; }
  size_t restored() const { return restored_; }

 private:
  struct Built {
    std::vector<size_t> members;
    LoopbackRing ring;
    RingBuffers buffers;
  };

  static double residual(LoopbackRing& ring, size_t node, uint64_t element) {
    const auto residual = ring.node(node).residual();
    return residual.empty() ? 0.0 : static_cast<double>(residual[element]);
  }

  void record(Built& bucket, double scale) {
    uint64_t at = 0;
    for (const size_t p : bucket.members) {
      for (uint64_t i = 0; i < parameters_[p].elements; ++i, ++at) {
        double magnitude = std::abs(static_cast<double>(bucket.buffers.results[0][at])) / scale;
        for (const auto& node : bucket.buffers.gradients) {
          for (const auto& gradient : node) {
            sums_[p][i] += static_cast<double>(gradient[at]) / scale;
            magnitude += std::abs(static_cast<double>(gradient[at])) / scale;
          }
        }
        for (size_t n = 0; n < bucket.ring.size(); ++n) {
          magnitude += std::abs(residual(bucket.ring, n, at)) / scale;
        }
        applied_[p][i] += static_cast<double>(bucket.buffers.results[0][at]) / scale;
        bound_[p][i] += static_cast<double>(bucket.ring.size()) * magnitude;
      }
    }
  }

  std::vector<Parameter> parameters_;
  std::vector<std::vector<double>> sums_, applied_, bound_;  // by parameter and element, at scale 1
  std::vector<Built> built_;
  uint32_t nodes_ = 0;
  double scale_ = 1;
  size_t restored_ = 0;
};

std::vector<Parameter> all_codecs() {
  return {{"a", 3000, codec("laco", 0.05, 5)},
          {"b", 77, codec("l8")},
          {"c", 5000, codec("lads", 0.02, 5)},
          {"d", 100, codec("none")},
          {"e", 9000, codec("laco", 0.01, 5)},
          {"f", 4097, codec("l8")},
          {"g", 0, codec("laco")},
          {"h", 2500, codec("lads", 0.1)}};
}

TEST(RebuiltBuckets, ConserveEveryGradient) {
  for (uint32_t nodes = 1; nodes <= 4; ++nodes) {
    Training training(all_codecs());
    std::mt19937 random(nodes);
    training.build(nodes, {{0, 1, 2, 3, 4, 5, 6, 7}});
    for (int i = 0; i < 25; ++i) {
      training.step(random);
    }
    training.check();
    training.build(nodes, {{7, 5}, {4, 3, 2}, {6, 1, 0}});
    EXPECT_EQ(training.restored(), nodes * 6U);  // all but the exact and the empty one
    training.check();
    for (int i = 0; i < 25; ++i) {
      training.step(random);
    }
    training.build(nodes, {{0, 2, 4, 6}, {1, 3, 5, 7}});
    training.build(nodes, {{3, 7}, {2, 4, 6, 1, 0}, {5}});  // nothing happened in between
    training.check();
    for (int i = 0; i < 5; ++i) {
      training.step(random);
    }
    training.check();
  }
}

TEST(RebuiltBuckets, OfALargerRingConserveEveryGradient) {
  Training training(all_codecs());
  std::mt19937 random(9);
  for (const uint32_t nodes : {1U, 2U, 3U, 5U}) {
    training.build(nodes, {{0, 4, 1}, {2, 3, 5, 6, 7}});
    training.check();
    for (int i = 0; i < 15; ++i) {
      training.step(random);
    }
    training.check();
  }
}

TEST(RebuiltBuckets, GoOnAtTheirScale) {
  Training training(all_codecs());
  std::mt19937 random(10);
  training.build(2, {{0, 1, 2, 3, 4}, {5, 6, 7}});
  for (int i = 0; i < 15; ++i) {
    training.step(random, 1024);
  }
  training.build(2, {{5, 0}, {1, 7, 2, 6, 3, 4}});
  for (int i = 0; i < 5; ++i) {
    training.step(random, 256);
  }
  training.check();
}

}  // namespace
}  // namespace gradwire::compress
