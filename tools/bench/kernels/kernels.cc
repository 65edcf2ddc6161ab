// kernel_bench: the leaf loops' memory traffic per second beside a memcpy's of the same traffic.
//
//   kernel_bench [--benchmark_filter=...]    Google Benchmark's flags
//   KERNEL_BENCH_SET=N_AVX2 kernel_bench     another instruction set than the fastest
//
// Each measurement alternates the kernel and a memcpy that reads and writes as many bytes in all, so that
// both see the same machine; `ratio` is the median over the rounds of memcpy's time by the kernel's. "ram"
// walks arrays far larger than the last cache, "cache" stays within a block.
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "compress/bitmap.h"
#include "compress/cpu/fused.h"
#include "compress/cpu/kernels.h"
#include "compress/elias_fano.h"
#include "compress/packed_codes.h"
#include "compress/select.h"

namespace gradwire::compress::cpu {
namespace {

constexpr size_t kRam = size_t{1} << 25;  // elements: 128 MiB of floats
constexpr size_t kBlock = kFusedBlock;
constexpr uint32_t kSparseBlock = 65536;

const Kernels& chosen() {
  const char* const name = std::getenv("KERNEL_BENCH_SET");  // NOLINT(concurrency-mt-unsafe): one thread
  for (const Kernels* table : offered()) {
    if (name != nullptr && std::string_view(table->name) == name) {
      return *table;
    }
  }
  return kernels();
}

// Everything that the kernels read and write, touched beforehand.
struct Arrays {
  Arrays() : residual(kRam), gradient(kRam), next(kRam), codes(kRam), arrived(kRam), positions(kSparseBlock) {
    std::mt19937 random(1);
    std::normal_distribution<float> gauss(0.0F, 1e-3F);
    std::vector<float> period(65521);
    for (float& value : period) {
      value = gauss(random);
    }
    for (size_t i = 0; i < kRam; ++i) {
      residual[i] = period[i % period.size()];
      gradient[i] = period[(i + 17) % period.size()];
      arrived[i] = static_cast<uint8_t>((i * 37 % 2 << 7) | (60 + i * 41 % 60));
    }
  }
  std::vector<float> residual, gradient, next;
  std::vector<uint8_t> codes, arrived;
  std::vector<uint32_t> positions;
};
Arrays& arrays() {
  static Arrays all;
  return all;
}

// This thread's processor time: what else runs on the machine counts only as far as it takes memory and
// caches.
double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}
double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One round of the kernel covers `elements` and moves bytes_each of traffic per element (reads plus writes).
struct Work {
  std::function<void()> kernel;
  size_t elements = 0;
  double bytes_each = 0;
  size_t repeat = 1;  // per round, for work within the caches
};

void measure(benchmark::State& state, const Work& work) {
  Arrays& all = arrays();
  const auto traffic = static_cast<size_t>(work.bytes_each * static_cast<double>(work.elements));
  // Copies within the arrays; a copy of n bytes is 2n of traffic. In cache it repeats over the same bytes.
  const size_t copied = std::min(traffic / 2, kRam * sizeof(float));
  std::vector<double> ours, theirs, ratios;
  work.kernel();
  for (auto _ : state) {
    double from = now();
    for (size_t i = 0; i < work.repeat; ++i) {
      work.kernel();
      benchmark::ClobberMemory();
    }
    ours.push_back(now() - from);
    from = now();
    for (size_t i = 0; i < work.repeat; ++i) {
      std::memcpy(all.next.data(), all.gradient.data(), copied);
      benchmark::ClobberMemory();
    }
    theirs.push_back((now() - from) * static_cast<double>(traffic) / static_cast<double>(2 * copied));
    ratios.push_back(theirs.back() / ours.back());
    state.SetIterationTime(ours.back());
  }
  const double rounds = static_cast<double>(work.repeat) / median(ours);
  state.counters["GB/s"] = static_cast<double>(traffic) * rounds * 1e-9;
  state.counters["memcpy"] =
      static_cast<double>(traffic) * static_cast<double>(work.repeat) / median(theirs) * 1e-9;
  state.counters["ratio"] = median(ratios);
  state.counters["Gelem/s"] = static_cast<double>(work.elements) * rounds * 1e-9;
}

void hop_blocks(size_t elements, bool arrived) {
  Arrays& all = arrays();
  const void* const local = all.gradient.data();
  for (size_t at = 0; at < elements; at += kBlock) {
    benchmark::DoNotOptimize(chosen().l8_hop({.arrived = arrived ? all.arrived.data() + at : nullptr,
                                              .arrived_scale = 117,
                                              .residual = all.residual.data() + at,
                                              .locals = {&local, 1},
                                              .first = at,
                                              .count = kBlock,
                                              .codes = all.codes.data() + at,
                                              .next = all.next.data() + at}));
  }
}

// The first pass of a LADS hop at about 1%: the threshold is the step before's.
void scan_blocks(size_t elements) {
  Arrays& all = arrays();
  const void* const local = all.gradient.data();
  for (size_t at = 0; at < elements; at += kSparseBlock) {
    const size_t count = std::min<size_t>(kSparseBlock, elements - at);
    double partials[kPartials] = {};
    benchmark::DoNotOptimize(chosen().scan({.base = all.residual.data() + at,
                                            .locals = {&local, 1},
                                            .first = at,
                                            .count = static_cast<uint32_t>(count),
                                            .sum = all.next.data() + at,
                                            .threshold = threshold_bits(1e-3 * 1.414 * 2.576)},
                                           partials, all.positions.data()));
  }
}

template <class Call>
void by_blocks(size_t elements, Call call) {
  for (size_t at = 0; at < elements; at += kBlock) {
    call(at);
  }
}

struct Named {
  const char* name;
  double bytes_each;
  std::function<void(size_t elements)> run;
};

std::vector<Named> dense_kernels() {
  static constexpr uint32_t kScale = 117;
  return {
      {"l8_hop_arrived", 14, [](size_t n) { hop_blocks(n, true); }},
      {"l8_hop_first", 13, [](size_t n) { hop_blocks(n, false); }},
      {"lads_scan", 12, [](size_t n) { scan_blocks(n); }},
      {"l8_encode", 9,
       [](size_t n) {
         by_blocks(n, [](size_t at) {
           chosen().l8_encode(arrays().residual.data() + at, kBlock, kScale, arrays().codes.data() + at);
         });
       }},
      {"l8_decode_add", 9,
       [](size_t n) {
         by_blocks(n, [](size_t at) {
           chosen().l8_decode_add(arrays().arrived.data() + at, kBlock, kScale, arrays().gradient.data() + at,
                                  arrays().next.data() + at);
         });
       }},
      {"l8_decode_scaled", 5,
       [](size_t n) {
         by_blocks(n, [](size_t at) {
           chosen().l8_decode_scaled(arrays().arrived.data() + at, kBlock, kScale, 0.25F,
                                     arrays().next.data() + at);
         });
       }},
      {"add", 12,
       [](size_t n) {
         by_blocks(n, [](size_t at) {
           chosen().add(arrays().residual.data() + at, arrays().gradient.data() + at,
                        arrays().next.data() + at, kBlock);
         });
       }},
      {"square_sum", 4,
       [](size_t n) {
         double partials[kPartials] = {};
         by_blocks(n,
                   [&](size_t at) { chosen().add_squares(arrays().gradient.data() + at, kBlock, partials); });
         benchmark::DoNotOptimize(partials[0]);
       }},
      {"max_magnitude", 4,
       [](size_t n) {
         by_blocks(n, [](size_t at) {
           benchmark::DoNotOptimize(chosen().max_magnitude(arrays().gradient.data() + at, kBlock));
         });
       }},
      {"widen_fp16", 6,
       [](size_t n) {
         by_blocks(n, [](size_t at) {
           chosen().widen_fp16(reinterpret_cast<const std::byte*>(arrays().arrived.data()) + at,
                               arrays().next.data() + at, kBlock);
         });
       }},
      {"narrow_fp16", 6,
       [](size_t n) {
         by_blocks(n, [](size_t at) {
           chosen().narrow_fp16(arrays().gradient.data() + at, 4.0F,
                                reinterpret_cast<std::byte*>(arrays().next.data() + at), kBlock);
         });
       }},
  };
}

// Decoders of one sparse block at a density; traffic counts the addend, the sum and the block's bytes.
void sparse_kernels(const std::string& density_name, double density) {
  std::mt19937 random(7);
  auto positions = std::make_shared<std::vector<uint32_t>>();
  for (uint32_t i = 0; i < kSparseBlock; ++i) {
    if (static_cast<double>(random()) < density * 4294967296.0) {
      positions->push_back(i);
    }
  }
  const auto count = static_cast<uint32_t>(positions->size());
  auto codes = std::make_shared<std::vector<uint8_t>>(count);
  for (uint8_t& code : *codes) {
    code = static_cast<uint8_t>((random() % 2 << 7) | (90 + random() % 12));
  }
  const uint32_t low = elias_fano::low_bits(kSparseBlock, count);
  auto fano = std::make_shared<std::vector<std::byte>>(elias_fano::bytes(kSparseBlock, count, low));
  elias_fano::write(*positions, kSparseBlock, low, fano->data());
  auto map = std::make_shared<std::vector<std::byte>>(bitmap::bytes(kSparseBlock));
  bitmap::write(*positions, kSparseBlock, map->data());
  const auto packing = packed_codes::narrowest(*codes);
  auto packed = std::make_shared<std::vector<std::byte>>(packed_codes::bytes(count, packing.width));
  packed_codes::pack(*codes, packing, packed->data());
  auto back = std::make_shared<std::vector<uint32_t>>(count);
  auto unpacked = std::make_shared<std::vector<uint8_t>>(count);

  const auto add = [&](const std::string& name, double bytes, size_t elements, std::function<void()> kernel) {
    const Work work{std::move(kernel), elements, bytes / static_cast<double>(elements), 20};
    benchmark::RegisterBenchmark(("cache/" + name + "_" + density_name).c_str(),
                                 [work](benchmark::State& state) { measure(state, work); })
        ->UseManualTime()
        ->Iterations(40);
  };
  add("elias_fano_read", static_cast<double>(fano->size()) + 4.0 * count, count,
      [=] { benchmark::DoNotOptimize(elias_fano::read(fano->data(), kSparseBlock, low, *back)); });
  add("unpack_codes", static_cast<double>(packed->size()) + count, count,
      [=] { benchmark::DoNotOptimize(packed_codes::unpack(packed->data(), packing, *unpacked)); });
  add("pack_codes", static_cast<double>(packed->size()) + count, count,
      [=] { packed_codes::pack(*codes, packing, packed->data()); });
  add("bitmap_read", static_cast<double>(map->size()) + 4.0 * count, count,
      [=] { benchmark::DoNotOptimize(bitmap::read(map->data(), kSparseBlock, *back)); });
}

void register_all() {
  for (const Named& kernel : dense_kernels()) {
    const auto add = [&](const char* where, size_t elements, size_t repeat, int rounds) {
      const Work work{[run = kernel.run, elements] { run(elements); }, elements, kernel.bytes_each, repeat};
      benchmark::RegisterBenchmark((std::string(where) + "/" + kernel.name).c_str(),
                                   [work](benchmark::State& state) { measure(state, work); })
          ->UseManualTime()
          ->Iterations(rounds);
    };
    add("ram", kRam, 1, 9);
    add("cache", kBlock, 200, 40);
  }
  sparse_kernels("0.1%", 0.001);
  sparse_kernels("1%", 0.01);
  sparse_kernels("6%", 0.06);
  sparse_kernels("25%", 0.25);
}

}  // namespace
}  // namespace gradwire::compress::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::AddCustomContext("kernels", gradwire::compress::cpu::chosen().name);
  gradwire::compress::cpu::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
