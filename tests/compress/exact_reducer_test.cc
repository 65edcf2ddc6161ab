#include <cmath>
#include <limits>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

template <typename T, typename Draw>
class TypedRing : public PairRing<T> {
 public:
  TypedRing(Dtype dtype, const BucketShape& shape, Draw draw)
      : PairRing<T>(
            ring_of(shape, [&](const BucketShape& place) { return make_exact_reducer(place, dtype); }),
            shape) {
    for (auto& gradient : this->gradients()) {
      for (T& value : gradient) {
        value = draw();
      }
    }
  }
};

const std::vector<std::vector<uint64_t>> kShapes = {{0}, {1}, {3, 5}, {777}, {65535, 2}, {65537}};

template <typename T>
void expect_float_sums(Dtype dtype) {
  std::mt19937 random(1);
  std::normal_distribution<T> normal;
  for (uint32_t nodes = 1; nodes <= 8; ++nodes) {
    for (const auto& sizes : kShapes) {
      TypedRing<T, std::function<T()>> ring(dtype, shape_of(sizes, nodes), [&] { return normal(random); });
      ASSERT_TRUE(*ring.run(ReduceOp::kAverage));
      for (size_t i = 0; i < ring.results()[0].size(); ++i) {
        long double exact = 0;
        long double magnitude = 0;
        for (const auto& gradient : ring.gradients()) {
          exact += gradient[i];
          magnitude += std::abs(gradient[i]);
        }
        const auto tolerance = static_cast<double>(2 * std::numeric_limits<T>::epsilon() * magnitude);
        ASSERT_NEAR(static_cast<double>(ring.results()[0][i]), static_cast<double>(exact / (2 * nodes)),
                    tolerance);
      }
      for (const auto& result : ring.results()) {
        ASSERT_EQ(result, ring.results()[0]);
      }
    }
  }
}

template <typename T>
void expect_integer_sums(Dtype dtype) {
  std::mt19937_64 random(2);
  for (uint32_t nodes = 1; nodes <= 5; ++nodes) {
    for (const auto& sizes : kShapes) {
      TypedRing<T, std::function<T()>> ring(dtype, shape_of(sizes, nodes),
                                            [&] { return static_cast<T>(random()); });
      ASSERT_TRUE(*ring.run(ReduceOp::kSum));
      for (size_t i = 0; i < ring.results()[0].size(); ++i) {
        uint64_t exact = 0;
        for (const auto& gradient : ring.gradients()) {
          exact += static_cast<uint64_t>(gradient[i]);
        }
        ASSERT_EQ(ring.results()[nodes - 1][i], static_cast<T>(exact));
      }
    }
  }
}

TEST(ExactReducer, AveragesFloatsWithinTheirRounding) {
  expect_float_sums<float>(Dtype::kFloat32);
  expect_float_sums<double>(Dtype::kFloat64);
}

TEST(ExactReducer, SumsIntegersExactlyAndWrapsAround) {
  expect_integer_sums<int32_t>(Dtype::kInt32);
  expect_integer_sums<int64_t>(Dtype::kInt64);
  expect_integer_sums<uint8_t>(Dtype::kUint8);
}

TEST(ExactReducer, SumsSmallIntegersInFloatsExactly) {
  std::mt19937 random(3);
  TypedRing<float, std::function<float()>> ring(Dtype::kFloat32, shape_of({5000}, 6),
                                                [&] { return static_cast<float>(random() % 1000) - 500; });
  ASSERT_TRUE(*ring.run(ReduceOp::kSum));
  for (size_t i = 0; i < 5000; ++i) {
    int64_t exact = 0;
    for (const auto& gradient : ring.gradients()) {
      exact += static_cast<int64_t>(gradient[i]);
    }
    ASSERT_EQ(ring.results()[0][i], static_cast<float>(exact));
  }
}

TEST(ExactReducer, AddsTheLocalRanksInOrder) {
  // (1e30 + -1e30) + 1 is 1 in this order only.
  const BucketShape shape = shape_of({1}, 1);
  auto reducer = std::move(make_exact_reducer(shape, Dtype::kFloat32)).value();
  const float values[] = {1e30F, -1e30F, 1.0F};
  const std::vector<const void*> locals = {&values[0], &values[1], &values[2]};
  std::vector<std::byte> out(4);
  ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 3)).ok());
  ASSERT_TRUE(reducer->hop(reducer->geometry().segments(0)[0], {}, locals, out.data()).ok());
  EXPECT_EQ(std::bit_cast<float>(std::to_array<std::byte>({out[0], out[1], out[2], out[3]})), 1.0F);
}

TEST(ExactReducer, OffersMinimumMaximumAndProduct) {
  std::mt19937 random(5);
  TypedRing<int32_t, std::function<int32_t()>> ring(Dtype::kInt32, shape_of({100}, 3),
                                                    [&] { return static_cast<int32_t>(random() % 7) - 3; });
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    ASSERT_TRUE(*ring.run(op));
    for (size_t i = 0; i < 100; ++i) {
      int32_t expected = ring.gradients()[0][i];
      for (size_t r = 1; r < ring.gradients().size(); ++r) {
        const int32_t value = ring.gradients()[r][i];
        expected = op == ReduceOp::kMin   ? std::min(expected, value)
                   : op == ReduceOp::kMax ? std::max(expected, value)
                                          : expected * value;
      }
      ASSERT_EQ(ring.results()[0][i], expected);
    }
  }
}

TEST(ExactReducer, FlagsWhatIsNotFiniteAndPoisonsTheResult) {
  std::mt19937 random(6);
  for (const float bad : {HUGE_VALF, -HUGE_VALF, NAN}) {
    TypedRing<float, std::function<float()>> ring(Dtype::kFloat32, shape_of({1000}, 3),
                                                  [&] { return static_cast<float>(random() % 10); });
    ring.gradients()[3][700] = bad;
    const auto done = ring.run(ReduceOp::kAverage);
    ASSERT_TRUE(done.ok());
    EXPECT_FALSE(*done);
    EXPECT_TRUE(std::isnan(ring.results()[2][0]));
  }
}

TEST(ExactReducer, AnInfinityIsAnOrdinaryMaximumButNanIsNot) {
  TypedRing<double, std::function<double()>> ring(Dtype::kFloat64, shape_of({4}, 2), [] { return 1.0; });
  ring.gradients()[1][2] = HUGE_VAL;
  ASSERT_TRUE(*ring.run(ReduceOp::kMax));
  EXPECT_EQ(ring.results()[0][2], HUGE_VAL);
  ring.gradients()[3][0] = NAN;
  EXPECT_FALSE(*ring.run(ReduceOp::kMin));
}

TEST(ExactReducer, RefusesWhatItCannotDoAndNamesIt) {
  const BucketShape shape = shape_of({10}, 2);
  auto integers = std::move(make_exact_reducer(shape, Dtype::kInt64)).value();
  const Status average = integers->begin(operation(ReduceOp::kAverage, 2));
  EXPECT_EQ(average.code(), Code::kInvalidArgument);
  EXPECT_NE(average.message().find("int64"), std::string::npos);
  EXPECT_EQ(integers->begin(operation(ReduceOp::kSum, 0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(integers->begin(operation(static_cast<ReduceOp>(9), 2)).code(), Code::kInvalidArgument);
  EXPECT_EQ(make_exact_reducer(shape, static_cast<Dtype>(77)).status().code(), Code::kInvalidArgument);
}

TEST(ExactReducer, RefusesMessagesOfAnotherLength) {
  const BucketShape shape = shape_of({10}, 2);
  auto reducer = std::move(make_exact_reducer(shape, Dtype::kFloat32)).value();
  ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 2)).ok());
  const std::vector<float> gradient(10);
  const std::vector<const void*> locals = {gradient.data()};
  std::vector<std::byte> out(40);
  std::vector<float> result(10);
  const Segment& segment = reducer->geometry().segments(1)[0];
  for (const size_t size : {1U, 39U, 41U, 44U}) {
    const std::vector<std::byte> bytes(size);
    EXPECT_EQ(reducer->hop(segment, bytes, locals, out.data()).status().code(), Code::kCorrupt);
    EXPECT_EQ(reducer->decode(segment, bytes, result.data()).code(), Code::kCorrupt);
  }
  EXPECT_EQ(reducer->decode(segment, {}, result.data()).code(), Code::kCorrupt);
}

TEST(ExactReducer, RunsARingOfAnEmptyBucket) {
  TypedRing<float, std::function<float()>> ring(Dtype::kFloat32, shape_of({}, 4), [] { return 0.0F; });
  EXPECT_TRUE(*ring.run(ReduceOp::kSum));
}

}  // namespace
}  // namespace gradwire::compress
