// What cluster_rank does with buckets. Failures of the library and wrong values are thrown as Wrong.
#pragma once

#include <gradwire/gradwire.h>

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cluster {

class Wrong : public std::exception {
 public:
  explicit Wrong(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// Throws "STATUS: SENTENCE" unless it is GW_OK.
void must(gw_status status);

struct Layers {
  std::string dtype = "float32";
  uint64_t count = 1;
  uint64_t elements = 0;  // of each
  bool gradient = false;
  std::string name = "weight";  // of several: with a number behind it
};

class Buckets {
 public:
  void create(gw_job* job, const std::string& name, const Layers& layers);
  void destroy(const std::string& name);
  void forget() { buckets_.clear(); }

  void submit(const std::string& name);
  void wait(const std::string& name, int64_t timeout_ms);
  // Filled with rank + 1; the sum is checked where the codec is none.
  void reduce(const std::string& name);
  void broadcast(const std::string& name, int root);
  void allgather(const std::string& name);
  void reduce_scatter(const std::string& name);
  // One NaN; the result must be NaN and flagged.
  void poison(const std::string& name);
  // Normal noise, or zeros if `noise` is false; returns the sum of the result's magnitudes.
  double pour(const std::string& name, bool noise);
  // One reduce of every bucket whose name begins so, all in flight at once, in an order of this rank's own.
  void reduce_all(const std::string& prefix, uint64_t seed);

 private:
  struct Bucket {
    gw_job* job = nullptr;
    gw_bucket* handle = nullptr;
    gw_dtype dtype = GW_FLOAT32;
    bool exact = true;
  };
  const Bucket& at(const std::string& name) const;
  static void fill(const Bucket& bucket, double value);
  static void expect(const Bucket& bucket, uint64_t first, uint64_t elements, double value);
  static void expect_sum(const Bucket& bucket, uint64_t first, uint64_t elements);

  std::map<std::string, Bucket> buckets_;
  uint64_t poured_ = 0;
};

}  // namespace cluster
