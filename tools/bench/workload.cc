#include "tools/bench/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "config/base/scramble.h"

namespace gradwire::tools {
namespace {

constexpr size_t kPeriod = 65521;
constexpr int kLargest = 127;  // 2^24 / 127 ranks sum exactly in float32
// L8's rounding error: worst of an element, and rms (docs/wire-format.md).
constexpr double kL8Worst = 0.0443;
constexpr double kL8Rms = 0.025;
// A step is up to 1.75 times the one before it, two residuals differ in a result, and half is added for
// chance.
constexpr double kDenseSlack = 1.75 * 1.4142 * 1.5;

// In [-1, 1).
double unit(uint64_t key) {
  return static_cast<double>(scramble(key + kGolden) >> 11) * 0x1p-52 - 1.0;
}

std::string wrong(uint64_t index, double got, const std::string& wanted) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.9g", got);
  return "element " + std::to_string(index) + " is " + text + ", not " + wanted;
}

std::string number(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

class ExactWorkload final : public Workload {
 public:
  explicit ExactWorkload(const WorkloadShape& shape) : shape_(shape), table_(kPeriod), sum_(kPeriod) {
    for (size_t i = 0; i < kPeriod; ++i) {
      table_[i] = static_cast<float>(static_cast<int>(scramble(i + kGolden) % (2 * kLargest + 1)) - kLargest);
    }
  }

  void fill(uint64_t step, std::span<float> gradient) override {
    size_t from = offset(shape_.rank, step);
    for (size_t at = 0; at < gradient.size(); from = 0) {
      const size_t count = std::min(kPeriod - from, gradient.size() - at);
      std::memcpy(&gradient[at], &table_[from], count * sizeof(float));
      at += count;
    }
  }

  std::optional<std::string> check(uint64_t step, std::span<const float> result) override {
    std::ranges::fill(sum_, 0.0f);
    for (uint32_t rank = 0; rank < shape_.world; ++rank) {
      const size_t from = offset(rank, step);
      for (size_t i = 0; i < kPeriod; ++i) {
        sum_[i] += table_[(from + i) % kPeriod];
      }
    }
    for (size_t at = 0; at < result.size(); at += kPeriod) {
      const size_t count = std::min(kPeriod, result.size() - at);
      const auto [got, want] = std::mismatch(&result[at], &result[at] + count, sum_.begin());
      if (got != &result[at] + count) {
        return wrong(static_cast<uint64_t>(got - result.data()), *got, number(*want));
      }
    }
    return std::nullopt;
  }

 private:
  static size_t offset(uint32_t rank, uint64_t step) {
    return static_cast<size_t>((uint64_t{rank} * 7919 + step * 104729) % kPeriod);
  }

  WorkloadShape shape_;
  std::vector<float> table_, sum_;
};

class LossyWorkload final : public Workload {
 public:
  LossyWorkload(const WorkloadShape& shape, bool dense)
      : shape_(shape), dense_(dense), own_(kPeriod), sum_(kPeriod), seen_(shape.elements) {
    for (size_t i = 0; i < kPeriod; ++i) {
      const double base = 1e-3 * (unit(3 * i) + unit(3 * i + 1) + unit(3 * i + 2));
      double sum = 0;
      for (uint32_t rank = 0; rank < shape.world; ++rank) {
        sum += share(base, rank, i);
      }
      own_[i] = static_cast<float>(share(base, shape.rank, i));
      sum_[i] = sum;
    }
  }

  void fill(uint64_t step, std::span<float> gradient) override {
    const float weight = static_cast<float>(weight_of(step));
    for (size_t at = 0; at < gradient.size(); at += kPeriod) {
      const size_t count = std::min(kPeriod, gradient.size() - at);
      std::transform(own_.begin(), own_.begin() + static_cast<ptrdiff_t>(count), &gradient[at],
                     [weight](float value) { return weight * value; });
    }
  }

  std::optional<std::string> check(uint64_t step, std::span<const float> result) override {
    const double weight = weight_of(step);
    weights_ += weight;
    const double slack = kL8Worst * 1.5 * (shape_.world + 1);
    double error = 0;
    double norm = 0;
    for (size_t at = 0; at < result.size(); at += kPeriod) {
      const size_t count = std::min(kPeriod, result.size() - at);
      for (size_t i = 0; i < count; ++i) {
        seen_[at + i] += result[at + i];
        const double total = weights_ * sum_[i];
        const double least = std::min(0.0, total) - slack * std::abs(total) - 1e-12;
        const double most = std::max(0.0, total) + slack * std::abs(total) + 1e-12;
        if (!(seen_[at + i] >= least && seen_[at + i] <= most)) {
          return wrong(at + i, seen_[at + i],
                       "between " + number(least) + " and " + number(most) + " (summed over steps)");
        }
        const double want = weight * sum_[i];
        error += (result[at + i] - want) * (result[at + i] - want);
        norm += want * want;
      }
    }
    const double limit = kL8Rms * std::sqrt((shape_.world + 1) / 2.0) * kDenseSlack;
    if (dense_ && error > limit * limit * norm) {
      return "the relative error of the step is " + number(std::sqrt(error / norm)) + ", at most " +
             number(limit) + " is allowed";
    }
    return std::nullopt;
  }

 private:
  // Ranks differ by up to a quarter.
  static double share(double base, uint32_t rank, size_t i) {
    return base * (1 + 0.25 * unit((uint64_t{rank} + 1) << 32 | i));
  }
  static double weight_of(uint64_t step) { return 1 + 0.25 * static_cast<double>(step % 4); }

  WorkloadShape shape_;
  bool dense_;
  std::vector<float> own_;
  std::vector<double> sum_;
  std::vector<float> seen_;  // sum of all results
  double weights_ = 0;
};

}  // namespace

std::unique_ptr<Workload> make_exact_workload(const WorkloadShape& shape) {
  return std::make_unique<ExactWorkload>(shape);
}

std::unique_ptr<Workload> make_lossy_workload(const WorkloadShape& shape, bool dense) {
  return std::make_unique<LossyWorkload>(shape, dense);
}

uint64_t hash_bits(uint64_t seed, std::span<const float> values) {
  uint64_t hash = scramble(seed + kGolden);
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace gradwire::tools
