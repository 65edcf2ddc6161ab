// A rank for the cluster tests that does what its arguments say, one step after another:
//   join                       with the place in the environment
//   bucket:NAME:DTYPE:ELEMENTS[:gradient]     DTYPE float32, int32 or int64
//   submit:NAME  wait:NAME[:MS]               an allreduce in two steps
//   reduce:NAME[:TIMES]                       filled with rank + 1, the sum checked where the codec is none
//   poison:NAME                               one NaN; the result must be NaN and flagged
//   broadcast:NAME:ROOT                       checked
//   barrier  leave  sleep:MS  forever
//   linger                     from here on, stay after an error until killed
// After each step it prints "ok STEP SECONDS", or "error STEP SECONDS STATUS: SENTENCE" and ends with code 1.
#include <gradwire/gradwire.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

struct Bucket {
  gw_bucket* handle;
  gw_dtype dtype;
  bool exact;
};

class Wrong : public std::exception {
 public:
  explicit Wrong(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

void must(gw_status status) {
  if (status != GW_OK) {
    throw Wrong(std::string(gw_status_name(status)) + ": " + gw_last_error());
  }
}

Words split(const std::string& text) {
  Words words(1);
  for (const char c : text) {
    if (c == ':') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

[[noreturn]] void stay() {
  for (;;) {
    ::pause();
  }
}

class Rank {
 public:
  bool lingers() const { return lingers_; }

  void step(const Words& words) {
    const auto arg = [&](size_t i, const char* otherwise) { return i < words.size() ? words[i] : otherwise; };
    const std::string& verb = words[0];
    if (verb == "join") {
      gw_join_options options{};
      options.struct_size = sizeof(options);
      options.rank = options.world = -1;
      must(gw_join(&options, &job_));
    } else if (verb == "bucket") {
      create(words.at(1), words.at(2), std::stoull(words.at(3)), arg(4, "") == "gradient");
    } else if (verb == "submit") {
      fill(at(words), static_cast<double>(gw_rank(job_) + 1));
      must(gw_allreduce(at(words).handle, GW_SUM));
    } else if (verb == "wait") {
      must(gw_wait(at(words).handle, std::stoll(arg(2, "-1")), nullptr));
    } else if (verb == "reduce") {
      for (long long times = std::stoll(arg(2, "1")); times > 0; --times) {
        reduce(at(words));
      }
    } else if (verb == "poison") {
      poison(at(words));
    } else if (verb == "broadcast") {
      broadcast(at(words), std::stoi(words.at(2)));
    } else if (verb == "barrier") {
      must(gw_barrier(job_, -1));
    } else if (verb == "leave") {
      must(gw_leave(std::exchange(job_, nullptr)));
    } else if (verb == "sleep") {
      ::usleep(static_cast<useconds_t>(std::stoul(words.at(1)) * 1000));
    } else if (verb == "forever") {
      stay();
    } else if (verb == "linger") {
      lingers_ = true;
    } else {
      throw Wrong("unknown step");
    }
  }

 private:
  Bucket& at(const Words& words) { return buckets_.at(words.at(1)); }

  void create(const std::string& name, const std::string& dtype, uint64_t elements, bool gradient) {
    static const std::map<std::string, gw_dtype> kTypes = {
        {"float32", GW_FLOAT32}, {"int32", GW_INT32}, {"int64", GW_INT64}};
    const std::string layer = name + ".weight";
    const gw_layer layers[] = {{layer.c_str(), elements}};
    Bucket bucket{nullptr, kTypes.at(dtype), true};
    must(gw_bucket_create(job_, name.c_str(), bucket.dtype, layers, 1, gradient ? GW_BUCKET_GRADIENT : 0,
                          &bucket.handle));
    bucket.exact = std::string(gw_bucket_codec(bucket.handle)) == "none";
    buckets_[name] = bucket;
  }

  template <typename Function>
  static void with_type(const Bucket& bucket, Function function) {
    if (bucket.dtype == GW_FLOAT32) {
      function(float{});
    } else if (bucket.dtype == GW_INT32) {
      function(int32_t{});
    } else {
      function(int64_t{});
    }
  }

  static void fill(const Bucket& bucket, double value) {
    with_type(bucket, [&](auto type) {
      auto* gradient = static_cast<decltype(type)*>(gw_bucket_gradient(bucket.handle));
      std::fill_n(gradient, gw_bucket_elements(bucket.handle), static_cast<decltype(type)>(value));
    });
  }

  static void expect(const Bucket& bucket, double value) {
    with_type(bucket, [&](auto type) {
      const auto* result = static_cast<const decltype(type)*>(gw_bucket_result(bucket.handle));
      for (uint64_t i = 0; i < gw_bucket_elements(bucket.handle); ++i) {
        if (result[i] != static_cast<decltype(type)>(value)) {
          throw Wrong("wrong: element " + std::to_string(i) + " is " + std::to_string(result[i]) + ", not " +
                      std::to_string(value));
        }
      }
    });
  }

  void reduce(const Bucket& bucket) {
    const double world = gw_world(job_);
    fill(bucket, gw_rank(job_) + 1);
    must(gw_allreduce(bucket.handle, GW_SUM));
    must(gw_wait(bucket.handle, -1, nullptr));
    if (bucket.exact) {
      expect(bucket, world * (world + 1) / 2);
    }
  }

  void poison(const Bucket& bucket) {
    fill(bucket, 1);
    if (gw_rank(job_) == gw_world(job_) - 1) {
      static_cast<float*>(gw_bucket_gradient(bucket.handle))[gw_bucket_elements(bucket.handle) / 2] = NAN;
    }
    uint32_t flags = 0;
    must(gw_allreduce(bucket.handle, GW_SUM));
    must(gw_wait(bucket.handle, -1, &flags));
    const float* result = static_cast<const float*>(gw_bucket_result(bucket.handle));
    if ((flags & GW_RESULT_NOT_FINITE) == 0 || !std::isnan(result[0])) {
      throw Wrong("wrong: the NaN was not reported");
    }
  }

  void broadcast(const Bucket& bucket, int root) {
    fill(bucket, 100 + gw_rank(job_));
    must(gw_broadcast(bucket.handle, root));
    must(gw_wait(bucket.handle, -1, nullptr));
    expect(bucket, 100 + root);
  }

  bool lingers_ = false;
  gw_job* job_ = nullptr;
  std::map<std::string, Bucket> buckets_;
};

}  // namespace

int main(int argc, char** argv) {
  Rank rank;
  for (int i = 1; i < argc; ++i) {
    const Clock::time_point start = Clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    try {
      rank.step(split(argv[i]));
    } catch (const std::exception& error) {
      std::printf("error %s %.3f %s\n", argv[i], seconds(), error.what());
      std::fflush(stdout);
      if (rank.lingers()) {
        stay();
      }
      return 1;
    }
    std::printf("ok %s %.3f\n", argv[i], seconds());
    std::fflush(stdout);
  }
  return 0;
}
