// What compressed layers have held back, once they are sent exactly.
#include <cmath>
#include <limits>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

using State = std::vector<std::vector<LayerState>>;  // by node

// Gradients and results of a training whose buckets change, and all nodes' residuals at its end.
class OwedTraining {
 public:
  explicit OwedTraining(BucketShape shape) : shape_(std::move(shape)), buffers_(shape_, 1) {}

  LoopbackRing ring(const std::vector<CodecSettings>& settings, const State& state = {}) {
    LoopbackRing ring = compressed_ring(shape_, settings);
    for (uint32_t n = 0; n < state.size(); ++n) {
      EXPECT_EQ(ring.node(n).restore_state(state[n]), state[n].size());
    }
    return ring;
  }

  void steps(LoopbackRing& ring, int count, double scale = 1) {
    for (int i = 0; i < count; ++i) {
      buffers_.fill([&] { return normal_(random_) * static_cast<float>(scale); });
      ASSERT_TRUE(run_sum(ring, buffers_, scale));
      for (size_t e = 0; e < given_.size(); ++e) {
        applied_[e] += static_cast<double>(buffers_.results[0][e]) / scale;
        for (const auto& node : buffers_.gradients) {
          given_[e] += static_cast<double>(node[0][e]) / scale;
        }
      }
    }
  }

  // The largest difference between what was given and what arrived, over the elements [from, to).
  double missing(size_t from, size_t to) const {
    double most = 0;
    for (size_t e = from; e < to; ++e) {
      most = std::max(most, std::abs(given_[e] - applied_[e]));
    }
    return most;
  }

  static State taken(LoopbackRing& ring) {
    State state;
    for (uint32_t n = 0; n < ring.size(); ++n) {
      state.push_back(ring.node(n).take_state());
    }
    return state;
  }

  RingBuffers& buffers() { return buffers_; }

 private:
  BucketShape shape_;
  RingBuffers buffers_;
  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
  std::vector<double> given_ = std::vector<double>(elements_of(shape_));
  std::vector<double> applied_ = std::vector<double>(elements_of(shape_));
};

std::vector<CodecSettings> all(const char* name, size_t layers = 2) {
  return std::vector<CodecSettings>(layers, codec(name, 0.01));
}

constexpr double kRounding = 1e-4;

TEST(Owed, GoesAlongWithTheNextOperationAroundTheRingAndDirectly) {
  for (const bool direct : {false, true}) {
    for (const char* name : {"laco", "lads", "onebit", "l8"}) {
      BucketShape shape = shape_of({9000, 4000}, 4);
      shape.direct = direct;
      OwedTraining training(shape);
      LoopbackRing compressed = training.ring(all(name));
      training.steps(compressed, 20);
      EXPECT_GT(training.missing(0, 13'000), 0.01);
      LoopbackRing exact = training.ring(all("none"), OwedTraining::taken(compressed));
      EXPECT_GT(exact.node(1).stats().residual_norm, 0);
      training.steps(exact, 1);
      EXPECT_LT(training.missing(0, 13'000), kRounding) << name;
      EXPECT_EQ(exact.node(1).stats().residual_norm, 0);
      training.steps(exact, 3);
      EXPECT_LT(training.missing(0, 13'000), kRounding) << name << ": once";
    }
  }
}

TEST(Owed, OfSomeLayersLeavesTheOthersAlone) {
  OwedTraining training(shape_of({9000, 4000}, 3));
  LoopbackRing compressed = training.ring(all("laco"));
  training.steps(compressed, 20);
  LoopbackRing mixed = training.ring({codec("laco", 0.01), codec("none")}, OwedTraining::taken(compressed));
  training.steps(mixed, 1);
  EXPECT_LT(training.missing(9000, 13'000), kRounding);
  EXPECT_GT(training.missing(0, 9000), 0.01);
}

TEST(Owed, FollowsTheLossScale) {
  OwedTraining training(shape_of({9000, 4000}, 2));
  LoopbackRing compressed = training.ring(all("laco"));
  training.steps(compressed, 20, 1024);
  LoopbackRing exact = training.ring(all("none"), OwedTraining::taken(compressed));
  training.steps(exact, 1, 2);
  EXPECT_LT(training.missing(0, 13'000), kRounding);
}

TEST(Owed, StaysWhereAnOperationIsNotFinite) {
  OwedTraining training(shape_of({9000, 4000}, 2));
  LoopbackRing compressed = training.ring(all("laco"));
  training.steps(compressed, 20);
  LoopbackRing exact = training.ring(all("none"), OwedTraining::taken(compressed));
  training.buffers().fill([] { return 0.0F; });
  training.buffers().gradients[1][0][77] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(run_sum(exact, training.buffers()));
  training.steps(exact, 1);
  EXPECT_LT(training.missing(0, 13'000), kRounding);
}

TEST(Owed, IsNoPartOfMomentumNorOfWhatIsClipped) {
  // The same gradients without anything owed give the rest of what arrives.
  std::vector<CodecSettings> settings = all("none");
  settings[0].momentum = 0.5;
  settings[1].clip_norm = 1;
  const BucketShape shape = shape_of({9000, 4000}, 2);
  OwedTraining training(shape);
  LoopbackRing compressed = training.ring(all("laco"));
  training.steps(compressed, 20);
  State state = OwedTraining::taken(compressed);
  std::vector<double> owed(13'000);
  for (auto& node : state) {
    uint64_t first = 0;
    for (LayerState& layer : node) {
      for (uint64_t e = 0; e < layer.elements; ++e) {
        owed[first + e] += static_cast<double>((*layer.residual.memory)[layer.residual.first + e]);
      }
      first += layer.elements;
    }
  }
  LoopbackRing with = training.ring(settings, state);
  LoopbackRing without = training.ring(settings);
  RingBuffers other = training.buffers();
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(run_sum(with, training.buffers()) && run_sum(without, other));
    for (size_t e = 0; e < owed.size(); ++e) {
      const double more =
          static_cast<double>(training.buffers().results[0][e]) - static_cast<double>(other.results[0][e]);
      ASSERT_NEAR(more, step == 0 ? owed[e] : 0, 1e-4) << e;
    }
  }
}

TEST(Owed, GoesBackToACodecUnsentAndAfterwardsItsControllersDo) {
  for (const int between : {0, 2}) {
    OwedTraining training(shape_of({9000, 4000}, 2));
    LoopbackRing compressed = training.ring(all("laco"));
    training.steps(compressed, 30);
    const auto before = compressed.node(0).describe_state(0, 2);
    LoopbackRing exact = training.ring(all("none"), OwedTraining::taken(compressed));
    training.steps(exact, between);
    const double held = exact.node(0).stats().residual_norm;
    EXPECT_EQ(held > 0, between == 0);
    LoopbackRing again = training.ring(all("laco"), OwedTraining::taken(exact));
    EXPECT_NEAR(again.node(0).stats().residual_norm, held, 1e-6 * held);
    training.steps(again, 1);
    const auto after = again.node(0).describe_state(0, 2);
    ASSERT_EQ(after.size(), 2U);
    EXPECT_EQ(after[0].operations, before[0].operations + 1) << "the warm start goes on";
    EXPECT_NEAR(after[0].alpha, before[0].alpha, 0.06 * before[0].alpha);
  }
}

TEST(Owed, IsACopySoThatTheOldBucketsMemoryIsFree) {
  OwedTraining training(shape_of({9000, 4000}, 1));
  LoopbackRing compressed = training.ring(all("laco"));
  training.steps(compressed, 3);
  State state = OwedTraining::taken(compressed);
  const std::weak_ptr<const std::vector<float>> memory = state[0][0].residual.memory;
  LoopbackRing exact = training.ring({codec("laco", 0.01), codec("none")}, state);
  const uint64_t held = exact.node(0).stats().residual_bytes;
  state.clear();
  EXPECT_TRUE(memory.expired());
  LoopbackRing fresh = training.ring({codec("laco", 0.01), codec("none")});
  EXPECT_EQ(held, fresh.node(0).stats().residual_bytes + 2 * 4000 * sizeof(float))
      << "with a block to send it";
  training.steps(exact, 1);
  EXPECT_LT(training.missing(9000, 13'000), kRounding);
}

// Whoever keeps states keeps one by name.
TEST(Owed, OfALayerWithMomentumIsInItsOneState) {
  std::vector<CodecSettings> settings = all("none");
  settings[0].momentum = 0.5;
  for (const int between : {0, 1}) {
    OwedTraining training(shape_of({9000, 4000}, 2));
    LoopbackRing compressed = training.ring(all("laco"));
    training.steps(compressed, 10, 2);
    State state = OwedTraining::taken(compressed);
    for (auto& node : state) {
      // From a bucket with momentum, of another loss scale.
      node[0].velocity = {true, std::make_shared<const std::vector<float>>(9000, 1.0F), 0};
      node.push_back(node[0]);
      node.push_back(node[1]);
      node[2].residual = {};
      node[2].scale = 1;
      node[0].velocity = {};
      std::swap(node[0], node[2]);  // its momentum comes first
      node.pop_back();
    }
    LoopbackRing exact = training.ring(settings, state);
    training.steps(exact, between);
    BucketReducer& node = exact.node(0);
    const auto described = node.describe_state(0, 9);
    std::vector<float> kept(node.kept_floats());
    node.copy_kept(0, kept);
    const auto taken = node.take_state();
    ASSERT_EQ(described.size(), 2U) << "a save has the controllers, too";
    ASSERT_EQ(taken.size(), 2U);
    EXPECT_EQ(taken[0].name, "layer0");
    EXPECT_EQ(taken[1].name, "layer1");
    EXPECT_TRUE(taken[0].velocity.kept);
    EXPECT_EQ(taken[0].residual.kept, between == 0);
    EXPECT_EQ(taken[1].residual.kept, between == 0);
    EXPECT_EQ(taken[0].operations, 10U + static_cast<unsigned>(between));
    EXPECT_EQ(taken[0].scale, 1.0);
    EXPECT_GT(taken[0].alpha, 0);
    EXPECT_NEAR(taken[0].mean_square, state[0][2].mean_square / 4, 1e-9);
    for (size_t i = 0; i < described.size(); ++i) {
      EXPECT_EQ(described[i].name, taken[i].name);
      EXPECT_EQ(described[i].residual.kept, taken[i].residual.kept);
      for (uint64_t e = 0; e < taken[i].elements && taken[i].residual.kept; ++e) {
        ASSERT_EQ(kept.at(described[i].residual.first + e),
                  taken[i].residual.memory->at(taken[i].residual.first + e));
      }
    }
    if (between == 0) {
      const LayerValues& before = state[0][2].residual;
      EXPECT_EQ(taken[0].residual.memory->at(77), before.memory->at(before.first + 77) / 2) << "at scale 1";
    }
  }
}

TEST(Owed, IsPartOfASavedStateUntilItIsSent) {
  OwedTraining training(shape_of({9000, 4000}, 2));
  LoopbackRing compressed = training.ring(all("laco"));
  training.steps(compressed, 10);
  const State state = OwedTraining::taken(compressed);
  LoopbackRing exact = training.ring(all("none"), state);
  const BucketReducer& node = exact.node(1);
  ASSERT_EQ(node.kept_floats(), 13'000U);
  std::vector<float> floats(13'000);
  node.copy_kept(0, std::span(floats).first(10'000));
  node.copy_kept(10'000, std::span(floats).subspan(10'000));
  for (size_t first = 0; first < 2; ++first) {
    const auto described = node.describe_state(first, 1);
    ASSERT_EQ(described.size(), 1U);
    const LayerState& layer = state[1][first];
    EXPECT_EQ(described[0].name, layer.name);
    EXPECT_EQ(described[0].operations, layer.operations);
    for (uint64_t e = 0; e < layer.elements; ++e) {
      ASSERT_EQ(floats[described[0].residual.first + e], (*layer.residual.memory)[layer.residual.first + e]);
    }
  }
  EXPECT_TRUE(node.describe_state(2, 9).empty());
  training.steps(exact, 1);
  EXPECT_EQ(node.kept_floats(), 0U);
  const auto sent = node.describe_state(0, 9);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_FALSE(sent[0].residual.kept);
  EXPECT_EQ(sent[0].alpha, state[1][0].alpha);
}

}  // namespace
}  // namespace gradwire::compress
