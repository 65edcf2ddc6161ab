#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/bench/bench.h"
#include "tools/format.h"

namespace gradwire::tools {
namespace {

constexpr int kBenchSchemaVersion = 1;

}  // namespace

Timing summarize(std::vector<double> samples) {
  std::ranges::sort(samples);
  const auto percentile = [&](double share) {
    const size_t rank = static_cast<size_t>(std::ceil(share * static_cast<double>(samples.size())));
    return samples[std::max<size_t>(rank, 1) - 1];
  };
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  return {percentile(0.5), percentile(0.99), samples.front(), sum / static_cast<double>(samples.size())};
}

double algorithm_bandwidth(const BenchResult& result) {
  return result.timing.median_s > 0 ? static_cast<double>(result.bytes) / result.timing.median_s : 0;
}

double bus_bandwidth(const BenchResult& result, const BenchPlace& place) {
  const double nodes = place.nodes();
  return algorithm_bandwidth(result) * 2 * (nodes - 1) / nodes;
}

std::string bench_table(const std::vector<BenchResult>& results, const BenchPlace& place) {
  using enum Table::Align;
  Table table({{"SIZE", kRight},
               {"CODEC"},
               {"OPS", kRight},
               {"MEDIAN", kRight},
               {"MIN", kRight},
               {"P99", kRight},
               {"ALG GB/s", kRight},
               {"BUS GB/s", kRight},
               {"WIRE/OP", kRight},
               {"RATIO", kRight},
               {"VERIFIED"}});
  for (const BenchResult& result : results) {
    const auto wire = static_cast<uint64_t>(result.wire_bytes_per_operation);
    std::string verified = "-";
    if (result.verified) {
      verified = result.failures != 0 ? "WRONG (" + std::to_string(result.failures) + ")"
                 : result.by_value    ? "yes"
                                      : "same bits";
    }
    table.add_row(
        {format_bytes(result.bytes), printable(result.codec), std::to_string(result.iterations),
         format_duration_ns(result.timing.median_s * 1e9), format_duration_ns(result.timing.min_s * 1e9),
         format_duration_ns(result.timing.p99_s * 1e9), format_fixed(algorithm_bandwidth(result) / 1e9, 3),
         format_fixed(bus_bandwidth(result, place) / 1e9, 3), format_bytes(wire),
         format_ratio(static_cast<uint64_t>(result.raw_bytes_per_operation), wire), verified});
  }
  return "allreduce of float32, " + std::to_string(place.world) + " ranks on " +
         std::to_string(place.nodes()) + " nodes\n" + table.render("");
}

nlohmann::ordered_json bench_json(const std::vector<BenchResult>& results, const BenchPlace& place,
                                  const BenchOptions& options) {
  nlohmann::ordered_json out{{"schema_version", kBenchSchemaVersion},
                             {"world", place.world},
                             {"nodes", place.nodes()},
                             {"warmup_iterations", options.warmup},
                             {"results", nlohmann::ordered_json::array()}};
  for (const BenchResult& result : results) {
    nlohmann::ordered_json verified;
    if (result.verified) {
      verified = result.failures == 0;
    }
    nlohmann::ordered_json ratio;
    if (result.wire_bytes_per_operation > 0) {
      ratio = result.raw_bytes_per_operation / result.wire_bytes_per_operation;
    }
    out["results"].push_back({{"bytes", result.bytes},
                              {"elements", result.elements},
                              {"codec", printable(result.codec)},
                              {"iterations", result.iterations},
                              {"median_seconds", result.timing.median_s},
                              {"min_seconds", result.timing.min_s},
                              {"mean_seconds", result.timing.mean_s},
                              {"p99_seconds", result.timing.p99_s},
                              {"algorithm_bytes_per_second", algorithm_bandwidth(result)},
                              {"bus_bytes_per_second", bus_bandwidth(result, place)},
                              {"raw_bytes_per_operation", result.raw_bytes_per_operation},
                              {"wire_bytes_per_operation", result.wire_bytes_per_operation},
                              {"ratio", ratio},
                              {"verified", verified}});
  }
  return out;
}

}  // namespace gradwire::tools
