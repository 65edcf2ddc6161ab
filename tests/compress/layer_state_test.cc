// What one compressor takes over from layers of another, and goes on from.
#include <cmath>
#include <limits>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

std::unique_ptr<BucketReducer> compressor(const std::vector<Layer>& layers, const CodecSettings& settings,
                                          uint32_t nodes = 1) {
  BucketShape shape;
  shape.layers = layers;
  shape.nodes = nodes;
  shape.max_message_bytes = 70000;
  return std::move(make_compressor(shape, std::vector<CodecSettings>(layers.size(), settings))).value();
}

LayerState state_of(std::string name, std::vector<float> residual, double scale = 1.0) {
  LayerState state;
  state.name = std::move(name);
  state.elements = residual.size();
  state.residual.memory = std::make_shared<const std::vector<float>>(std::move(residual));
  state.scale = scale;
  return state;
}

TEST(LayerState, MeetsInOneBucketFromBucketsOfDifferentScales) {
  auto reducer = compressor({{"a", 10}, {"b", 4}}, codec("l8"));
  const std::vector<LayerState> state = {state_of("b", std::vector<float>(4, 3.0F), 4.0),
                                         state_of("a", std::vector<float>(10, 5.0F), 2.0)};
  EXPECT_EQ(reducer->restore_state(state), 2U);
  EXPECT_EQ(reducer->residual()[0], 5.0F);   // the larger layer's scale
  EXPECT_EQ(reducer->residual()[10], 1.5F);  // 3 / 4 * 2
  EXPECT_FLOAT_EQ(static_cast<float>(reducer->stats().residual_norm), std::sqrt(259.0F));
  const auto again = reducer->take_state();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].scale, 2.0);
}

TEST(LayerState, IsTakenWithoutACopy) {
  auto reducer = compressor({{"a", 5000}, {"b", 3000}}, codec("laco"));
  EXPECT_EQ(reducer->restore_state(std::vector{state_of("b", std::vector<float>(3000, 1.0F))}), 1U);
  const float* const before = reducer->residual().data();
  const auto state = reducer->take_state();
  ASSERT_EQ(state.size(), 2U);
  EXPECT_EQ(state[0].residual.memory->data() + state[0].residual.first, before);
  EXPECT_EQ(state[1].residual.memory, state[0].residual.memory);
  EXPECT_EQ(state[1].residual.first, state[0].residual.first + 5000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(before) % 64, 0U);
}

TEST(LayerState, ControllersAndTheWarmStartGoOn) {
  const CodecSettings settings = codec("laco", 0.01, 4);
  auto first = compressor({{"a", 20000}}, settings);
  std::vector<float> gradient(20000);
  std::vector<std::byte> out(70000);
  const std::vector<const void*> locals = {gradient.data()};
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const auto run = [&](BucketReducer& reducer) {
    std::generate(gradient.begin(), gradient.end(), [&] { return normal(random); });
    ASSERT_TRUE(reducer.begin(operation(ReduceOp::kSum, 1)).ok());
    ASSERT_TRUE(reducer.hop(reducer.geometry().segments(0)[0], {}, locals, out.data()).ok());
    reducer.commit();
  };
  for (int i = 0; i < 30; ++i) {
    run(*first);
  }
  EXPECT_EQ(first->stats().warm_stage, 255U);
  auto state = first->take_state();
  ASSERT_EQ(state.size(), 1U);
  EXPECT_EQ(state[0].operations, 30U);
  EXPECT_NE(state[0].alpha, 0.0);
  EXPECT_GT(state[0].mean_square, 0.5);

  auto fresh = compressor({{"a", 20000}}, settings);
  EXPECT_EQ(fresh->stats().warm_stage, 0U);
  auto second = compressor({{"x", 7}, {"a", 20000}}, settings);
  ASSERT_EQ(second->restore_state(state), 1U);
  EXPECT_EQ(second->stats().warm_stage, 255U);
  const auto again = second->take_state();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[1].name, "a");
  EXPECT_EQ(again[1].operations, 30U);
  EXPECT_EQ(again[1].alpha, state[0].alpha);
  EXPECT_EQ(again[1].mean_square, state[0].mean_square);
}

// Runs a bucket of one node as a whole, and another that is rebuilt from its state again and again.
void expect_going_on(const BucketShape& shape, const std::vector<CodecSettings>& settings) {
  const auto make = [&] { return std::move(make_compressor(shape, settings)).value(); };
  auto whole = make();
  auto parts = make();
  std::vector<float> gradient(elements_of(shape));
  const std::vector<const void*> locals = {gradient.data()};
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 40; ++step) {
    if (step % 7 == 5) {
      const auto state = parts->take_state();
      parts = make();
      ASSERT_EQ(parts->restore_state(state), state.size());
      ASSERT_EQ(parts->stats().warm_stage, whole->stats().warm_stage);
    }
    std::generate(gradient.begin(), gradient.end(), [&] { return normal(random); });
    ASSERT_TRUE(whole->begin(operation(ReduceOp::kSum, 1)).ok());
    ASSERT_TRUE(parts->begin(operation(ReduceOp::kSum, 1)).ok());
    for (const Segment& segment : whole->geometry().segments(0)) {
      std::vector<std::byte> a(segment.max_bytes);
      std::vector<std::byte> b(segment.max_bytes);
      ASSERT_EQ(whole->hop(segment, {}, locals, a.data())->bytes,
                parts->hop(segment, {}, locals, b.data())->bytes);
      ASSERT_EQ(a, b) << "step " << step;
    }
    whole->commit();
    parts->commit();
  }
}

TEST(LayerState, TheSameBucketGoesOnBitByBit) {
  const BucketShape shape = shape_of({20000, 50, 3000}, 1, 70000);
  for (const double momentum : {0.0, 0.9}) {
    for (const char* const name : {"laco", "lads", "topk", "dropping"}) {
      CodecSettings settings = codec(name, 0.02, 3);
      settings.momentum = momentum;
      for (const ThresholdScope scope : {ThresholdScope::kLayer, ThresholdScope::kBucket}) {
        SCOPED_TRACE(std::string(name) + (momentum > 0 ? " with momentum" : "") +
                     (scope == ThresholdScope::kBucket ? " for the bucket" : ""));
        settings.scope = scope;
        expect_going_on(shape, std::vector<CodecSettings>(3, settings));
      }
    }
  }
}

TEST(LayerState, AnExponentialWarmStartGoesOnBitByBit) {
  CodecSettings settings = codec("laco", 0.01, 30);
  settings.warm_start = WarmStart::kExponential;
  for (const NormOf norm_of : {NormOf::kSum, NormOf::kGradient}) {
    settings.norm_of = norm_of;
    expect_going_on(shape_of({20000, 50}, 1, 70000), std::vector<CodecSettings>(2, settings));
  }
}

TEST(LayerState, RandomRoundingGoesOnBitByBit) {
  CodecSettings settings = codec("l8");
  settings.rounding = Rounding::kStochastic;
  expect_going_on(shape_of({20000, 50}, 1, 70000), std::vector<CodecSettings>(2, settings));
}

TEST(LayerState, OfResidualsInBf16GoesOnBitByBit) {
  for (const char* const name : {"laco", "lads", "topk", "dropping", "l8"}) {
    std::vector<CodecSettings> settings(4, codec(name, 0.02, 3));
    settings[0].residuals = ResidualType::kBfloat16;
    settings[2].residuals = ResidualType::kBfloat16;
    settings[2].momentum = 0.9;
    SCOPED_TRACE(name);
    expect_going_on(shape_of({20000, 50, 3000, 4000}, 1, 70000), settings);
  }
}

TEST(LayerState, HasTheMomentumOfExactLayersToo) {
  std::vector<CodecSettings> settings(3, codec("none"));
  settings[1].momentum = 0.9;
  expect_going_on(shape_of({300, 200, 100}, 1, 70000), settings);
  settings[2] = codec("laco", 0.02, 3);
  settings[2].momentum = 0.5;
  expect_going_on(shape_of({300, 200, 3000}, 1, 70000), settings);
}

// One node that sends everything at once: what comes out is the momentum.
float sent_with_momentum(BucketReducer& reducer, uint64_t element, float gradient, double scale) {
  std::vector<float> gradients(element + 1, gradient);
  std::vector<float> result(element + 1);
  std::vector<std::byte> out(70000);
  const std::vector<const void*> locals = {gradients.data()};
  const Segment segment = reducer.geometry().segments(0)[0];
  EXPECT_TRUE(reducer.begin(operation(ReduceOp::kSum, 1, scale)).ok());
  const auto hop = reducer.hop(segment, {}, locals, out.data());
  EXPECT_TRUE(hop.ok() && reducer.decode(segment, std::span(out).first(hop->bytes), result.data()).ok());
  reducer.commit();
  return result[element];
}

TEST(LayerState, MomentumGoesToAnotherBucketAtItsLossScale) {
  CodecSettings settings = codec("none");
  settings.momentum = 0.5;
  auto first = compressor({{"a", 100}}, settings);
  EXPECT_EQ(sent_with_momentum(*first, 99, 8, 2), 8);
  EXPECT_EQ(first->kept_floats(), 100U);
  std::vector<float> kept(100);
  first->copy_kept(0, kept);
  EXPECT_EQ(kept[99], 8);
  auto state = first->take_state();
  ASSERT_EQ(state.size(), 1U);
  EXPECT_FALSE(state[0].residual.kept);
  auto second = compressor({{"x", 7}, {"a", 100}}, settings);
  ASSERT_EQ(second->restore_state(state), 1U);
  EXPECT_EQ(sent_with_momentum(*second, 106, 4, 1), 6);  // 4, and half of 8 / 2
}

TEST(LayerState, OfMomentumThatMakesNoSenseIsIgnored) {
  CodecSettings settings = codec("l8");
  settings.momentum = 0.5;
  const auto with = [&](auto change) {
    LayerState state = state_of("a", std::vector<float>(100, 2.0F));
    state.velocity = {true, std::make_shared<const std::vector<float>>(100, 1.0F), 0};
    change(state);
    auto reducer = compressor({{"a", 100}}, settings);
    const size_t restored = reducer->restore_state(std::vector{state});
    EXPECT_EQ(reducer->residual()[99], restored == 1 ? 2.0F : 0.0F);
    return restored;
  };
  EXPECT_EQ(with([](LayerState&) {}), 1U);
  EXPECT_EQ(with([](LayerState& s) { s.velocity.memory = nullptr; }), 0U);
  EXPECT_EQ(with([](LayerState& s) { s.velocity.first = 1; }), 0U);
  EXPECT_EQ(with([](LayerState& s) {
              s.velocity.memory = std::make_shared<const std::vector<float>>(100, HUGE_VALF);
            }),
            0U);
}

TEST(LayerState, NothingIsKeptWhereThereIsNothingToLose) {
  auto exact = compressor({{"a", 5000}}, codec("none"));
  EXPECT_TRUE(exact->take_state().empty());
  auto unused = compressor({{"a", 5000}}, codec("laco"));
  EXPECT_TRUE(unused->take_state().empty());
  auto plain = std::move(make_exact_reducer(shape_of({10}, 1), Dtype::kFloat32)).value();
  EXPECT_TRUE(plain->take_state().empty());
  EXPECT_EQ(plain->restore_state(std::vector{state_of("layer0", std::vector<float>(10))}), 0U);
}

TEST(LayerState, WhatMakesNoSenseIsIgnoredLayerByLayer) {
  const std::vector<float> good(3000, 2.0F);
  const auto with = [&](auto change) {
    LayerState state = state_of("a", good);
    change(state);
    return state;
  };
  std::vector<float> nan = good;
  nan[2999] = NAN;
  std::vector<float> infinite = good;
  infinite[0] = -HUGE_VALF;
  const std::vector<LayerState> hostile = {
      with([](LayerState& s) { s.residual.memory = nullptr; }),
      with([](LayerState& s) { s.residual.first = 1; }),
      with([](LayerState& s) { s.residual.first = UINT64_MAX; }),
      with([](LayerState& s) { s.elements = 3001; }),
      with([](LayerState& s) { s.elements = UINT64_MAX; }),
      with([](LayerState& s) { s.elements = 0; }),
      with([](LayerState& s) { s.name = "A"; }),
      with([](LayerState& s) { s.scale = 0; }),
      with([](LayerState& s) { s.scale = -1; }),
      with([](LayerState& s) { s.scale = NAN; }),
      with([](LayerState& s) { s.scale = HUGE_VAL; }),
      with([](LayerState& s) { s.scale = 5e-324; }),
      with([](LayerState& s) { s.scale = 1e30; }),
      state_of("a", nan),
      state_of("a", infinite),
  };
  for (const LayerState& bad : hostile) {
    auto reducer = compressor({{"a", 3000}, {"b", 100}}, codec("laco"));
    EXPECT_EQ(reducer->restore_state(std::vector{bad, state_of("b", std::vector<float>(100, 7.0F))}), 1U);
    EXPECT_EQ(reducer->residual()[0], 0.0F);
    EXPECT_EQ(reducer->residual()[2999], 0.0F);
    EXPECT_EQ(reducer->residual()[3099], 7.0F);
  }
}

TEST(LayerState, AResidualThatAnotherScaleWouldOverflowStartsAtZero) {
  auto reducer = compressor({{"a", 3000}, {"b", 100}}, codec("laco"));
  const std::vector<LayerState> state = {state_of("a", std::vector<float>(3000, 1.0F), 0x1p60),
                                         state_of("b", std::vector<float>(100, 700.0F), 0x1p-60)};
  EXPECT_EQ(reducer->restore_state(state), 1U);
  EXPECT_EQ(reducer->residual()[0], 1.0F);
  EXPECT_EQ(reducer->residual()[3050], 0.0F);
}

TEST(LayerState, ControllersThatMakeNoSenseLeaveTheBucketUsable) {
  for (const double bad : {0.0, -1.0, 1e308, HUGE_VAL, static_cast<double>(NAN), 5e-324}) {
    auto reducer = compressor({{"a", 3000}}, codec("laco", 0.01, 10));
    LayerState state = state_of("a", std::vector<float>(3000, 1.0F));
    state.alpha = bad;
    state.mean_square = bad;
    state.operations = UINT64_MAX;
    ASSERT_EQ(reducer->restore_state(std::vector{state}), 1U);
    const std::vector<float> gradient(3000, 0.5F);
    const std::vector<const void*> locals = {gradient.data()};
    std::vector<std::byte> out(70000);
    bool sent = false;
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 1)).ok());
      ASSERT_TRUE(reducer->hop(reducer->geometry().segments(0)[0], {}, locals, out.data()).ok());
      reducer->commit();
      ASSERT_TRUE(std::isfinite(reducer->stats().residual_norm));
      sent |= reducer->stats().density > 0;
    }
    const auto after = reducer->take_state();
    ASSERT_EQ(after.size(), 1U);
    EXPECT_TRUE(after[0].mean_square > 0 && std::isfinite(after[0].mean_square));
    EXPECT_TRUE(after[0].alpha >= 1e-3 && after[0].alpha <= 1e3);
    EXPECT_TRUE(sent);
  }
}

TEST(LayerState, NoResidualIsUsedTwice) {
  auto reducer = compressor({{"a", 100}, {"a", 100}, {"a", 100}}, codec("l8"));
  const std::vector<LayerState> state = {state_of("a", std::vector<float>(100, 1.0F)),
                                         state_of("a", std::vector<float>(100, 2.0F))};
  EXPECT_EQ(reducer->restore_state(state), 2U);
  EXPECT_EQ(reducer->residual()[0] + reducer->residual()[100] + reducer->residual()[200], 3.0F);
}

TEST(LayerState, ComesTooLateAfterTheFirstOperation) {
  auto reducer = compressor({{"a", 100}}, codec("l8"));
  const std::vector<float> gradient(100, 0.5F);
  const std::vector<const void*> locals = {gradient.data()};
  std::vector<std::byte> out(70000);
  ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 1)).ok());
  ASSERT_TRUE(reducer->hop(reducer->geometry().segments(0)[0], {}, locals, out.data()).ok());
  reducer->commit();
  EXPECT_EQ(reducer->restore_state(std::vector{state_of("a", std::vector<float>(100, 1.0F))}), 0U);
}

}  // namespace
}  // namespace gradwire::compress
