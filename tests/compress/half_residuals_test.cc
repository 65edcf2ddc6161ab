// Residuals that lie in bf16 between operations.
#include <algorithm>
#include <cmath>

#include "compress/codecs/codec.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

CodecSettings in_halves(std::string name, double density = 0.02, uint32_t warm_start_steps = 0) {
  CodecSettings settings = codec(std::move(name), density, warm_start_steps);
  settings.residuals = ResidualType::kBfloat16;
  settings.dense_below = 0;
  return settings;
}

// Of a bucket whose residuals all are in bf16.
std::vector<float> halves_of(const BucketReducer& reducer, size_t elements) {
  std::vector<float> values(elements);
  EXPECT_GE(reducer.kept_floats(), elements);
  reducer.copy_kept(0, values);
  return values;
}

// By element in fp64: what was put in, what came out, what an fp32 sum may be off by, and the variance that
// the rounding of residuals may have added: each is rounded by chance, with a root of the mean square of at
// most 2^-8 of what it was, which is at most 1 / (1 - 2^-7) of what it became.
class HalfLedger {
 public:
  explicit HalfLedger(uint64_t elements)
      : given_(elements), applied_(elements), held_(elements), sums_(elements), variance_(elements) {}

  void record(LoopbackRing& ring, const RingBuffers& buffers) {
    std::fill(held_.begin(), held_.end(), 0.0);
    for (size_t n = 0; n < ring.size(); ++n) {
      const auto residual = halves_of(ring.node(n), held_.size());
      for (size_t i = 0; i < held_.size(); ++i) {
        const auto value = static_cast<double>(residual[i]);
        held_[i] += value;
        sums_[i] += static_cast<double>(ring.size()) * std::abs(value);
        variance_[i] += std::pow(value / (256 * (1 - 1.0 / 128)), 2);
      }
    }
    for (size_t i = 0; i < held_.size(); ++i) {
      double magnitude = std::abs(static_cast<double>(buffers.results[0][i]));
      for (const auto& node : buffers.gradients) {
        for (const auto& gradient : node) {
          given_[i] += static_cast<double>(gradient[i]);
          magnitude += std::abs(static_cast<double>(gradient[i]));
        }
      }
      applied_[i] += static_cast<double>(buffers.results[0][i]);
      sums_[i] += static_cast<double>(ring.size()) * magnitude;  // as in conservation_test.cc
    }
  }

  void check() const {
    double off = 0;
    double variance = 0;
    double rounded = 0;
    for (size_t i = 0; i < given_.size(); ++i) {
      const double sums = std::numeric_limits<float>::epsilon() * sums_[i] + 1e-30;
      ASSERT_NEAR(applied_[i] + held_[i], given_[i], 6 * std::sqrt(variance_[i]) + sums) << "element " << i;
      off += applied_[i] + held_[i] - given_[i];
      variance += variance_[i];
      rounded += sums;
    }
    EXPECT_LE(std::abs(off), 6 * std::sqrt(variance) + rounded) << "all of them together";
  }

 private:
  std::vector<double> given_, applied_, held_, sums_, variance_;
};

class HalfResiduals : public testing::TestWithParam<std::string> {};

TEST_P(HalfResiduals, ConserveEveryGradientButForTheirRounding) {
  for (const bool direct : {false, true}) {
    for (uint32_t nodes = 1; nodes <= 4; ++nodes) {
      BucketShape shape = shape_of({1, 77, 641}, nodes);
      shape.direct = direct;
      LoopbackRing ring = compressed_ring(shape, in_halves(GetParam(), 0.02, 30));
      RingBuffers buffers(shape, 1 + nodes % 2);
      HalfLedger ledger(elements_of(shape));
      Gauss draw(nodes);
      for (int step = 0; step < (direct ? 100 : 1000); ++step) {
        buffers.fill([&] { return draw(); });
        ASSERT_TRUE(run_sum(ring, buffers));
        ledger.record(ring, buffers);
      }
      ledger.check();
    }
  }
}

TEST_P(HalfResiduals, StayBoundedForTenThousandStepsOfConstantsAndZeros) {
  const BucketShape shape = shape_of({64 * 9}, 3);
  LoopbackRing ring = compressed_ring(shape, in_halves(GetParam(), 0.05));
  RingBuffers buffers(shape, 1);
  size_t at = 0;
  buffers.fill([&] { return at++ % 3 == 0 ? 1.0F : 0.0F; });
  const auto largest = [&] {
    float most = 0;
    for (size_t n = 0; n < ring.size(); ++n) {
      for (const float value : halves_of(ring.node(n), 64 * 9)) {
        most = std::max(most, std::abs(value));
      }
    }
    return most;
  };
  float early = 0;
  for (int step = 1; step <= 10000; ++step) {
    ASSERT_TRUE(run_sum(ring, buffers));
    early = step == 1000 ? largest() : early;
  }
  EXPECT_LE(largest(), 2 * early + 1);
}

TEST_P(HalfResiduals, AreZeroWhereNobodyHasAGradientOrErrorFeedbackIsOff) {
  for (const bool feedback : {true, false}) {
    const BucketShape shape = shape_of({5000}, 2);
    CodecSettings settings = in_halves(GetParam());
    settings.error_feedback = feedback;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    Gauss draw(1);
    buffers.fill([&] { return feedback ? 0.0F : draw(); });
    ASSERT_TRUE(run_sum(ring, buffers));
    EXPECT_EQ(halves_of(ring.node(0), 5000), std::vector<float>(5000));
  }
}

TEST_P(HalfResiduals, OfTheLargestFloatsStayFinite) {
  const float most = std::numeric_limits<float>::max();
  const BucketShape shape = shape_of({5000}, 1);
  LoopbackRing ring = compressed_ring(shape, in_halves(GetParam()));
  RingBuffers buffers(shape, 1);
  size_t at = 0;
  buffers.fill([&] { return at++ % 2 == 0 ? most : -most; });
  ASSERT_TRUE(run_sum(ring, buffers));
  for (const float value : halves_of(ring.node(0), 5000)) {
    ASSERT_TRUE(std::isfinite(value));
  }
}

std::vector<std::string> codecs_with_residuals() {
  std::vector<std::string> names;
  for (const CodecRow& row : codec_table()) {
    if (row.kind == CodecKind::kHop && row.make != nullptr) {
      names.emplace_back(row.name);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, HalfResiduals, testing::ValuesIn(codecs_with_residuals()),
                         [](const auto& name) { return name.param; });

// Gradients far below 2^-9 of the threshold: rounded to the nearest they would be lost as soon as they have
// piled up to some hundred of themselves.
TEST(HalfResidualsOfSparseLayers, LoseNoGradientForBeingSmall) {
  constexpr float kSmall = 1.0F / 1024;
  constexpr int kSteps = 4000;
  const BucketShape shape = shape_of({8192}, 1);
  LoopbackRing ring = compressed_ring(shape, in_halves("lads", 0.01));
  RingBuffers buffers(shape, 1);
  Gauss draw(7);
  double delivered = 0;
  for (int step = 0; step < kSteps; ++step) {
    size_t at = 0;
    buffers.fill([&] { return at++ % 8 == 0 ? kSmall : draw(); });
    ASSERT_TRUE(run_sum(ring, buffers));
    for (size_t i = 0; i < 8192; i += 8) {
      delivered += static_cast<double>(buffers.results[0][i]);
    }
  }
  const auto residual = halves_of(ring.node(0), 8192);
  for (size_t i = 0; i < 8192; i += 8) {
    delivered += static_cast<double>(residual[i]);
  }
  // 1,024 elements, each off by a random walk whose steps are 2^-8 of at most the 3.9 that it was given.
  const double given = 1024.0 * kSteps * kSmall;
  EXPECT_NEAR(delivered, given, 6 * std::sqrt(1024.0 * kSteps) * kSteps * kSmall / 256);
}

TEST(HalfResidualsOfSomeLayers, LeaveTheBitsOfTheOthersAlone) {
  const BucketShape shape = shape_of({3000, 100, 70000, 5000, 1, 4097}, 3);
  const std::vector<const char*> names = {"laco", "none", "laco", "lads", "l8", "l8"};
  std::vector<CodecSettings> floats;
  std::vector<CodecSettings> mixed;
  for (size_t i = 0; i < names.size(); ++i) {
    floats.push_back(codec(names[i], 0.05, 3));
    floats.back().momentum = i == 1 || i == 3 ? 0.5 : 0;
    mixed.push_back(floats.back());
    mixed.back().residuals = i % 2 == 0 ? ResidualType::kBfloat16 : ResidualType::kFloat32;
  }
  LoopbackRing as_floats = compressed_ring(shape, floats);
  LoopbackRing as_mixed = compressed_ring(shape, mixed);
  RingBuffers a(shape, 2);
  RingBuffers b(shape, 2);
  Gauss draw(5);
  bool differs = false;
  for (int step = 0; step < 20; ++step) {
    a.fill([&] { return draw(); });
    b.gradients = a.gradients;
    const double scale = step < 10 ? 1 : 0.3;
    ASSERT_TRUE(run_sum(as_floats, a, scale));
    ASSERT_TRUE(run_sum(as_mixed, b, scale));
    size_t first = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t end = first + shape.layers[i].elements;
      for (; first < end; ++first) {
        if (i % 2 == 0) {
          differs |= a.results[0][first] != b.results[0][first];
        } else {
          ASSERT_EQ(a.results[0][first], b.results[0][first]) << "layer " << i << ", step " << step;
        }
      }
    }
  }
  EXPECT_TRUE(differs) << "or nothing was rounded";
}

TEST(HalfResidualsOfSomeLayers, AreDescribedCopiedAndTakenAlike) {
  const BucketShape shape = shape_of({3000, 100, 5000, 300}, 1);
  std::vector<CodecSettings> settings = {in_halves("laco"), codec("none"), codec("lads"), in_halves("l8")};
  settings[3].momentum = 0.5;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  Gauss draw(5);
  buffers.fill([&] { return draw(); });
  ASSERT_TRUE(run_sum(ring, buffers));
  BucketReducer& node = ring.node(0);
  EXPECT_TRUE(node.residual().empty());
  ASSERT_EQ(node.kept_floats(), 3300U + 5100U + 8400U);
  std::vector<float> kept(node.kept_floats());
  for (size_t from = 0; from < kept.size(); from += 1111) {
    node.copy_kept(from, std::span(kept).subspan(from, std::min<size_t>(1111, kept.size() - from)));
  }
  const auto described = node.describe_state(0, 9);
  const auto taken = node.take_state();
  ASSERT_EQ(described.size(), 3U);
  ASSERT_EQ(taken.size(), 3U);
  double squares = 0;
  const auto expect_alike = [&](const LayerValues& copied, const LayerValues& moved, uint64_t elements) {
    ASSERT_EQ(copied.kept, moved.kept);
    for (uint64_t i = 0; copied.kept && i < elements; ++i) {
      const float value = kept.at(copied.first + i);
      ASSERT_EQ(value, moved.memory->at(moved.first + i));
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
  };
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(described[i].name, taken[i].name);
    expect_alike(described[i].residual, taken[i].residual, taken[i].elements);
    EXPECT_GT(squares, 0) << taken[i].name;
    squares = 0;
    expect_alike(described[i].velocity, taken[i].velocity, taken[i].elements);
    EXPECT_EQ(squares > 0, i == 2);
    squares = 0;
  }
}

TEST(HalfResidualsFromElsewhere, AreRoundedOnceAndRefusedWhereTheyWouldOverflow) {
  const BucketShape shape = shape_of({3000, 2000}, 1);
  LayerState state;
  state.name = "layer0";
  state.elements = 3000;
  state.residual.memory = std::make_shared<std::vector<float>>(3000, 1.0F / 3);
  LayerState other;
  other.name = "layer1";
  other.elements = 2000;
  other.scale = 1e-18;
  other.residual.memory = std::make_shared<std::vector<float>>(2000, 1e30F);
  LoopbackRing ring = compressed_ring(shape, in_halves("laco"));
  EXPECT_EQ(ring.node(0).restore_state(std::vector{state, other}), 1U) << "1e48 is no fp32";
  const auto restored = halves_of(ring.node(0), 5000);
  double sum = 0;
  for (size_t i = 0; i < 3000; ++i) {
    ASSERT_TRUE(restored[i] == 0x1.54p-2F || restored[i] == 0x1.56p-2F) << restored[i];
    sum += static_cast<double>(restored[i]);
  }
  EXPECT_NEAR(sum, 1000, 6 * std::sqrt(3000.0) * 0x1p-10);
  EXPECT_EQ(std::vector<float>(restored.begin() + 3000, restored.end()), std::vector<float>(2000));
  EXPECT_NEAR(ring.node(0).stats().residual_norm, std::sqrt(3000.0) / 3, 0.01);
}

TEST(HalfResidualsInMemory, TakeHalfOfIt) {
  const BucketShape shape = shape_of({100000, 200000, 5000}, 1);
  std::vector<CodecSettings> settings = {codec("laco"), codec("laco"), codec("none")};
  const uint64_t floats = held_bytes(shape, settings);
  settings[1].residuals = ResidualType::kBfloat16;
  constexpr uint64_t kBlock = 65536 * sizeof(float);
  EXPECT_EQ(held_bytes(shape, settings), floats - 2 * 2 * 200000 + kBlock);
  settings[0].residuals = ResidualType::kBfloat16;
  settings[2].residuals = ResidualType::kBfloat16;
  EXPECT_EQ(held_bytes(shape, settings), floats - 2 * 2 * 300000 - 2 * 4 * 5000 + kBlock)
      << "exact layers have none";
  const auto reducer = std::move(make_compressor(shape, settings)).value();
  EXPECT_EQ(reducer->stats().residual_bytes, held_bytes(shape, settings));
}

// Least squares by gradient descent: how far from its end it is after some steps.
double distance_after_descent(ResidualType residuals, const char* name) {
  constexpr size_t kElements = 4096;
  const BucketShape shape = shape_of({kElements}, 4);
  CodecSettings settings = codec(name, 0.01, 10);
  settings.residuals = residuals;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  Gauss draw(3);
  std::vector<float> weight(kElements);
  std::generate(weight.begin(), weight.end(), [&] { return draw(); });  // its end is 0
  for (int step = 0; step < 800; ++step) {
    for (auto& node : buffers.gradients) {
      for (size_t i = 0; i < kElements; ++i) {
        node[0][i] = weight[i] * (1 + static_cast<float>(i % 4)) / 4 + 0.1F * draw();
      }
    }
    EXPECT_TRUE(run_sum(ring, buffers));
    for (size_t i = 0; i < kElements; ++i) {
      weight[i] -= 0.02F * buffers.results[0][i] / 4;
    }
  }
  double squares = 0;
  for (const float value : weight) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares / kElements);
}

TEST(HalfResidualsInTraining, ComeAsCloseAsFloats) {
  for (const char* const name : {"laco", "lads", "l8"}) {
    const double floats = distance_after_descent(ResidualType::kFloat32, name);
    const double halves = distance_after_descent(ResidualType::kBfloat16, name);
    EXPECT_LT(floats, 0.05) << name << ": it must have come close";
    EXPECT_NEAR(halves, floats, 0.02 * floats) << name;
  }
}

}  // namespace
}  // namespace gradwire::compress
