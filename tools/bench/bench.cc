#include "tools/bench/bench.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>

#include "tools/bench/workload.h"

namespace gradwire::tools {
namespace {

using Clock = std::chrono::steady_clock;

Status failure(const std::string& call, gw_status status) {
  return {Code::kAborted, call + ": " + gw_status_name(status) + ": " + gw_last_error()};
}

#define BENCH_CALL(call)                                      \
  do {                                                        \
    if (const gw_status result_ = (call); result_ != GW_OK) { \
      return failure(#call, result_);                         \
    }                                                         \
  } while (false)

class Bucket {
 public:
  static Result<Bucket> create(gw_job* job, const std::string& name, gw_dtype dtype,
                               const std::vector<std::pair<std::string, uint64_t>>& layers, uint32_t flags) {
    std::vector<gw_layer> list;
    list.reserve(layers.size());
    for (const auto& [layer, elements] : layers) {
      list.push_back({layer.c_str(), elements});
    }
    gw_bucket* bucket = nullptr;
    if (const gw_status status =
            gw_bucket_create(job, name.c_str(), dtype, list.data(), list.size(), flags, &bucket);
        status != GW_OK) {
      return failure("gw_bucket_create(" + name + ")", status);
    }
    return Bucket(bucket);
  }

  gw_bucket* get() const { return bucket_.get(); }
  // Leaves it to gw_leave, so that the daemon goes on counting it as a bucket of the job.
  void keep() { static_cast<void>(bucket_.release()); }
  template <typename T>
  std::span<T> gradient() const {
    return {static_cast<T*>(gw_bucket_gradient(get())), gw_bucket_elements(get())};
  }
  template <typename T>
  std::span<const T> result() const {
    return {static_cast<const T*>(gw_bucket_result(get())), gw_bucket_elements(get())};
  }

 private:
  // A bucket with an operation in flight refuses; gw_leave frees it then.
  struct Destroy {
    void operator()(gw_bucket* bucket) const { gw_bucket_destroy(bucket); }
  };
  explicit Bucket(gw_bucket* bucket) : bucket_(bucket) {}
  std::unique_ptr<gw_bucket, Destroy> bucket_;
};

// Every rank's numbers, on every rank: a sum in which each rank fills its own places.
Result<std::vector<int64_t>> gather(gw_job* job, const BenchPlace& place, const std::string& name,
                                    const std::vector<int64_t>& own) {
  Result<Bucket> bucket =
      Bucket::create(job, name, GW_INT64, {{"all", own.size() * uint64_t{place.world}}}, 0);
  GRADWIRE_RETURN_IF_ERROR(bucket.status());
  const std::span<int64_t> places = bucket->gradient<int64_t>();
  std::fill(places.begin(), places.end(), 0);
  std::copy(own.begin(), own.end(), places.begin() + static_cast<ptrdiff_t>(own.size() * place.rank));
  BENCH_CALL(gw_allreduce(bucket->get(), GW_SUM));
  BENCH_CALL(gw_wait(bucket->get(), -1, nullptr));
  const std::span<const int64_t> all = bucket->result<int64_t>();
  return std::vector<int64_t>(all.begin(), all.end());
}

// Adds up what fails and says the first of it.
class Findings {
 public:
  explicit Findings(uint32_t rank) : rank_(rank) {}
  void add(const std::string& what) {
    if (count_++ == 0) {
      std::fprintf(stderr, "gradwire bench: rank %u: %s\n", rank_, what.c_str());
    }
  }
  int64_t count() const { return count_; }

 private:
  uint32_t rank_;
  int64_t count_ = 0;
};

std::unique_ptr<Workload> workload_for(const std::string& codec, const BenchPlace& place, uint64_t elements) {
  const WorkloadShape shape{place.rank, place.world, elements};
  return codec == "none" ? make_exact_workload(shape) : make_lossy_workload(shape, codec == "l8");
}

// Of these the error is their block's, not the element's, so that a sum may go beyond what the workload
// allows.
bool errs_by_block(const std::string& codec) {
  return codec == "int8" || codec == "int4" || codec == "onebit" || codec == "sign";
}

Result<Bucket> create_bucket(gw_job* job, const std::string& name, uint64_t elements,
                             const BenchOptions& options) {
  std::vector<std::pair<std::string, uint64_t>> layers;
  for (uint32_t i = 0; i < options.layers; ++i) {
    const uint64_t count = elements * (i + 1) / options.layers - elements * i / options.layers;
    layers.emplace_back(name + "." + std::to_string(i) + ".weight", count);
  }
  Result<Bucket> bucket =
      Bucket::create(job, name, GW_FLOAT32, layers, options.exact ? 0 : GW_BUCKET_GRADIENT);
  GRADWIRE_RETURN_IF_ERROR(bucket.status());
  const std::string codec = gw_bucket_codec(bucket->get());
  if (!options.codec.empty() && codec != options.codec) {
    return Status(Code::kMismatch, "the daemons' policy gives bucket " + name + " the codec " + codec +
                                       ", not " + options.codec +
                                       "; set compression.codec of the job's coordinator");
  }
  return bucket;
}

}  // namespace

Result<BenchResult> bench_size(gw_job* job, const BenchPlace& place, uint64_t bytes,
                               const BenchOptions& options) {
  const std::string name = "bench-" + std::to_string(bytes);
  const uint64_t elements = bytes / sizeof(float);
  Result<Bucket> bucket = create_bucket(job, name, elements, options);
  GRADWIRE_RETURN_IF_ERROR(bucket.status());
  BenchResult out;
  out.bytes = bytes;
  out.elements = elements;
  out.codec = gw_bucket_codec(bucket->get());
  out.iterations = options.iterations;
  out.verified = options.verify;
  out.by_value = !errs_by_block(out.codec);
  const std::unique_ptr<Workload> workload = workload_for(out.codec, place, elements);
  Findings findings(place.rank);
  uint64_t hash = 0;
  std::vector<int64_t> own_ns;
  gw_traffic before{sizeof(gw_traffic), 0, 0, 0};
  gw_traffic after = before;
  for (uint64_t step = 0; step < uint64_t{options.warmup} + options.iterations; ++step) {
    if (step == options.warmup) {
      BENCH_CALL(gw_job_traffic(job, &before));
    }
    if (options.verify || step == 0) {
      workload->fill(step, bucket->gradient<float>());
    }
    BENCH_CALL(gw_barrier(job, -1));
    const Clock::time_point start = Clock::now();
    uint32_t flags = 0;
    BENCH_CALL(gw_allreduce(bucket->get(), GW_SUM));
    BENCH_CALL(gw_wait(bucket->get(), -1, &flags));
    const Clock::time_point end = Clock::now();
    if (step >= options.warmup) {
      own_ns.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
    }
    if ((flags & GW_RESULT_NOT_FINITE) != 0) {
      findings.add(name + ", step " + std::to_string(step) + ": the result is not finite");
    }
    if (options.verify) {
      const auto wrong = out.by_value ? workload->check(step, bucket->result<float>()) : std::nullopt;
      if (wrong) {
        findings.add(name + ", step " + std::to_string(step) + ": " + *wrong);
      }
      hash = hash_bits(hash, bucket->result<float>());
    }
  }
  BENCH_CALL(gw_job_traffic(job, &after));

  std::vector<int64_t> own = own_ns;
  own.push_back(static_cast<int64_t>(hash));
  own.push_back(findings.count());
  Result<std::vector<int64_t>> all = gather(job, place, name + "-numbers", own);
  GRADWIRE_RETURN_IF_ERROR(all.status());
  const size_t stride = own.size();
  std::vector<double> slowest_s(options.iterations, 0.0);
  for (uint32_t rank = 0; rank < place.world; ++rank) {
    const int64_t* row = all->data() + stride * rank;
    for (uint32_t i = 0; i < options.iterations; ++i) {
      slowest_s[i] = std::max(slowest_s[i], static_cast<double>(row[i]) / 1e9);
    }
    if (row[options.iterations] != (*all)[options.iterations]) {
      ++out.failures;
      if (place.rank == 0) {
        std::fprintf(stderr, "gradwire bench: %s: the results of rank %u differ from those of rank 0\n",
                     name.c_str(), rank);
      }
    }
    out.failures += static_cast<uint64_t>(row[options.iterations + 1]);
  }
  bucket->keep();
  out.timing = summarize(std::move(slowest_s));
  out.raw_bytes_per_operation = static_cast<double>(after.raw_bytes - before.raw_bytes) / options.iterations;
  out.wire_bytes_per_operation =
      static_cast<double>(after.wire_bytes - before.wire_bytes) / options.iterations;
  return out;
}

}  // namespace gradwire::tools
