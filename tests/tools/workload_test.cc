#include "tools/bench/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tools/bench/bench.h"

namespace gradwire::tools {
namespace {

constexpr uint32_t kWorld = 3;
constexpr uint64_t kElements = 150'001;  // more than two periods

using Make = std::unique_ptr<Workload> (*)(const WorkloadShape&);
std::unique_ptr<Workload> dense(const WorkloadShape& shape) {
  return make_lossy_workload(shape, true);
}
std::unique_ptr<Workload> sparse(const WorkloadShape& shape) {
  return make_lossy_workload(shape, false);
}

// Sums the ranks' gradients of a step, as a perfect ring would.
class Ranks {
 public:
  explicit Ranks(Make make) {
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      ranks_.push_back(make({rank, kWorld, kElements}));
    }
  }
  std::vector<float> sum(uint64_t step) {
    std::vector<float> total(kElements), one(kElements);
    for (auto& rank : ranks_) {
      rank->fill(step, one);
      for (size_t i = 0; i < kElements; ++i) {
        total[i] += one[i];
      }
    }
    return total;
  }
  std::optional<std::string> check(uint64_t step, const std::vector<float>& result) {
    return ranks_[1]->check(step, result);
  }

 private:
  std::vector<std::unique_ptr<Workload>> ranks_;
};

TEST(Workload, TheSumPasses) {
  for (const Make make : {&make_exact_workload, &dense, &sparse}) {
    Ranks ranks(make);
    for (uint64_t step = 0; step < 5; ++step) {
      EXPECT_EQ(ranks.check(step, ranks.sum(step)), std::nullopt);
    }
  }
}

TEST(Workload, ExactFindsOneWrongElementAndNamesIt) {
  Ranks ranks(&make_exact_workload);
  std::vector<float> result = ranks.sum(0);
  result[140'000] += 1;
  EXPECT_THAT(*ranks.check(0, result), testing::HasSubstr("element 140000 is"));
}

TEST(Workload, ExactFindsTheResultOfTheStepBefore) {
  Ranks ranks(&make_exact_workload);
  EXPECT_NE(ranks.check(1, ranks.sum(0)), std::nullopt);
}

TEST(Workload, ExactFindsAMovedBlock) {
  Ranks ranks(&make_exact_workload);
  std::vector<float> result = ranks.sum(0);
  std::rotate(result.begin(), result.begin() + 64, result.end());
  EXPECT_NE(ranks.check(0, result), std::nullopt);
}

TEST(Workload, LossyAcceptsWhatErrorFeedbackHoldsBack) {
  Ranks ranks(&sparse);
  std::vector<float> residual(kElements);
  for (uint64_t step = 0; step < 12; ++step) {
    std::vector<float> result = ranks.sum(step);
    for (size_t i = 0; i < kElements; ++i) {
      const float whole = result[i] + residual[i];
      const bool sent = std::abs(whole) > 0.02f;
      result[i] = sent ? whole * 1.04f : 0.0f;
      residual[i] = whole - result[i];
    }
    ASSERT_EQ(ranks.check(step, result), std::nullopt) << step;
  }
}

TEST(Workload, LossyFindsValuesThatAreTooLargeOrOfTheWrongSignOrNotANumber) {
  const std::vector<float> good = Ranks(&sparse).sum(0);
  size_t large = 0;
  while (std::abs(good[large]) < 1e-3f) {
    ++large;
  }
  for (const float factor : {1.5f, -0.5f, NAN, INFINITY}) {
    Ranks ranks(&sparse);
    std::vector<float> result = good;
    result[large] *= factor;
    EXPECT_NE(ranks.check(0, result), std::nullopt) << factor;
  }
}

TEST(Workload, DenseFindsAStepThatWasLost) {
  Ranks ranks(&dense);
  EXPECT_NE(ranks.check(0, std::vector<float>(kElements)), std::nullopt);
}

TEST(Workload, HashesTellBitsApart) {
  const std::vector<float> zero{0.0f, 1.0f}, minus{-0.0f, 1.0f}, swapped{1.0f, 0.0f};
  EXPECT_EQ(hash_bits(1, zero), hash_bits(1, zero));
  EXPECT_NE(hash_bits(1, zero), hash_bits(1, minus));
  EXPECT_NE(hash_bits(1, zero), hash_bits(1, swapped));
  EXPECT_NE(hash_bits(1, zero), hash_bits(2, zero));
}

TEST(Bench, PercentilesAreByNearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) {
    samples.push_back(i);
  }
  const Timing timing = summarize(samples);
  EXPECT_EQ(timing.median_s, 50);
  EXPECT_EQ(timing.p99_s, 99);
  EXPECT_EQ(timing.min_s, 1);
  EXPECT_EQ(timing.mean_s, 50.5);
  EXPECT_EQ(summarize({7}).p99_s, 7);
}

TEST(Bench, BandwidthsFollowTheirFormulas) {
  BenchResult result;
  result.bytes = 1'000'000;
  result.timing.median_s = 0.001;
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(result), 1e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(result, {0, 8, 2}), 1.5e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(result, {0, 2, 2}), 0);
}

TEST(Bench, ReportsSayWhatIsWrong) {
  BenchResult result;
  result.bytes = 4096;
  result.codec = "l8";
  result.timing.median_s = 1e-3;
  result.verified = true;
  EXPECT_THAT(bench_table({result}, {0, 4, 2}), testing::HasSubstr("yes"));
  result.by_value = false;
  EXPECT_THAT(bench_table({result}, {0, 4, 2}), testing::HasSubstr("same bits"));
  result.failures = 2;
  EXPECT_THAT(bench_table({result}, {0, 4, 2}), testing::HasSubstr("WRONG (2)"));
  const auto json = bench_json({result}, {0, 4, 2}, {});
  EXPECT_EQ(json["results"][0]["verified"], false);
  EXPECT_EQ(json["nodes"], 2);
  EXPECT_TRUE(json["results"][0]["ratio"].is_null());
}

}  // namespace
}  // namespace gradwire::tools
