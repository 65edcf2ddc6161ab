// `gradwire bench`: measures allreduce as a rank of a job.
#pragma once

#include <gradwire/gradwire.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/base/result.h"

namespace gradwire::tools {

struct BenchOptions {
  std::vector<uint64_t> sizes;  // bytes of float32
  uint32_t iterations = 20;
  uint32_t warmup = 3;
  uint32_t layers = 1;  // of equal size in a bucket
  std::string codec;    // what the policy must have chosen; empty: anything
  bool exact = false;   // not a gradient bucket
  bool verify = true;
  bool json = false;
};

struct Timing {
  double median_s = 0, p99_s = 0, min_s = 0, mean_s = 0;
};
// `samples` is not empty. Percentiles by nearest rank.
Timing summarize(std::vector<double> samples);

struct BenchResult {
  uint64_t bytes = 0, elements = 0;
  std::string codec;
  uint32_t iterations = 0;
  Timing timing;                                                     // of the slowest rank in each iteration
  double raw_bytes_per_operation = 0, wire_bytes_per_operation = 0;  // sent by rank 0's node
  bool verified = false;
  bool by_value = true;   // false: only that all ranks have the same bits
  uint64_t failures = 0;  // checks that failed, over all ranks
};

struct BenchPlace {
  uint32_t rank = 0, world = 1, local_ranks = 1;
  uint32_t nodes() const { return (world + local_ranks - 1) / local_ranks; }
};

double algorithm_bandwidth(const BenchResult& result);                     // bytes a second
double bus_bandwidth(const BenchResult& result, const BenchPlace& place);  // times 2(P-1)/P, P nodes

std::string bench_table(const std::vector<BenchResult>& results, const BenchPlace& place);
nlohmann::ordered_json bench_json(const std::vector<BenchResult>& results, const BenchPlace& place,
                                  const BenchOptions& options);

// A whole size; all ranks call it with equal options.
Result<BenchResult> bench_size(gw_job* job, const BenchPlace& place, uint64_t bytes,
                               const BenchOptions& options);

}  // namespace gradwire::tools
