// Gradients whose average can be checked, without keeping anybody else's gradients.
//
// Exact: small integers, whose sum is the same in any order. Lossy: values of one sign per element on all
// ranks, so that what a codec holds back has that sign too, up to its rounding; the sum of all results so far
// then lies between nothing and the sum of all gradients so far. Both are periodic tables (a prime period, so
// that a block in the wrong place shows), which makes filling and checking cheap. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gradwire::tools {

class Workload {
 public:
  virtual ~Workload() = default;
  // This rank's gradient of iteration `step`. Steps are filled and checked in order, from 0.
  virtual void fill(uint64_t step, std::span<float> gradient) = 0;
  // What is wrong with the sum over all ranks; none if nothing is.
  virtual std::optional<std::string> check(uint64_t step, std::span<const float> result) = 0;
};

struct WorkloadShape {
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t elements = 0;
};

std::unique_ptr<Workload> make_exact_workload(const WorkloadShape& shape);
// `dense`: every element travels every time (l8), so each single result must be near the sum as well.
std::unique_ptr<Workload> make_lossy_workload(const WorkloadShape& shape, bool dense);

// Of the bits; equal on all ranks if the results are.
uint64_t hash_bits(uint64_t seed, std::span<const float> values);

}  // namespace gradwire::tools
