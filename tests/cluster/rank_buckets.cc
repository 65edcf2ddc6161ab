#include "rank_buckets.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace cluster {
namespace {

const std::map<std::string, gw_dtype> kTypes = {
    {"float32", GW_FLOAT32}, {"float64", GW_FLOAT64}, {"int32", GW_INT32}, {"int64", GW_INT64}};

template <typename Function>
void with_type(gw_dtype dtype, Function function) {
  switch (dtype) {
    case GW_FLOAT32:
      return function(float{});
    case GW_FLOAT64:
      return function(double{});
    case GW_INT32:
      return function(int32_t{});
    default:
      return function(int64_t{});
  }
}

std::pair<uint64_t, uint64_t> shard_of(const gw_bucket* bucket, int32_t rank) {
  uint64_t first = 0, elements = 0;
  must(gw_bucket_shard(bucket, rank, &first, &elements));
  return {first, elements};
}

}  // namespace

void must(gw_status status) {
  if (status != GW_OK) {
    throw Wrong(std::string(gw_status_name(status)) + ": " + gw_last_error());
  }
}

void Buckets::create(gw_job* job, const std::string& name, const Layers& layers) {
  std::vector<std::string> names;
  std::vector<gw_layer> all;
  for (uint64_t i = 0; i < layers.count; ++i) {
    names.push_back(layers.count == 1 ? layers.name : layers.name + std::to_string(i));
  }
  for (const std::string& each : names) {
    all.push_back({each.c_str(), layers.elements});
  }
  Bucket bucket;
  bucket.job = job;
  bucket.dtype = kTypes.at(layers.dtype);
  must(gw_bucket_create(job, name.c_str(), bucket.dtype, all.data(), all.size(),
                        layers.gradient ? GW_BUCKET_GRADIENT : 0, &bucket.handle));
  bucket.exact = std::string(gw_bucket_codec(bucket.handle)) == "none";
  buckets_[name] = bucket;
}

void Buckets::destroy(const std::string& name) {
  must(gw_bucket_destroy(at(name).handle));
  buckets_.erase(name);
}

const Buckets::Bucket& Buckets::at(const std::string& name) const {
  const auto found = buckets_.find(name);
  if (found == buckets_.end()) {
    throw Wrong("usage: no bucket of that name was created");
  }
  return found->second;
}

void Buckets::fill(const Bucket& bucket, double value) {
  with_type(bucket.dtype, [&](auto type) {
    auto* gradient = static_cast<decltype(type)*>(gw_bucket_gradient(bucket.handle));
    std::fill_n(gradient, gw_bucket_elements(bucket.handle), static_cast<decltype(type)>(value));
  });
}

void Buckets::expect(const Bucket& bucket, uint64_t first, uint64_t elements, double value) {
  with_type(bucket.dtype, [&](auto type) {
    const auto* result = static_cast<const decltype(type)*>(gw_bucket_result(bucket.handle));
    for (uint64_t i = first; i < first + elements; ++i) {
      if (result[i] != static_cast<decltype(type)>(value)) {
        throw Wrong("wrong: element " + std::to_string(i) + " is " + std::to_string(result[i]) + ", not " +
                    std::to_string(value));
      }
    }
  });
}

void Buckets::expect_sum(const Bucket& bucket, uint64_t first, uint64_t elements) {
  const double world = gw_world(bucket.job);
  expect(bucket, first, elements, world * (world + 1) / 2);
}

void Buckets::submit(const std::string& name) {
  const Bucket& bucket = at(name);
  fill(bucket, gw_rank(bucket.job) + 1);
  must(gw_allreduce(bucket.handle, GW_SUM));
}

void Buckets::wait(const std::string& name, int64_t timeout_ms) {
  must(gw_wait(at(name).handle, timeout_ms, nullptr));
}

void Buckets::reduce(const std::string& name) {
  submit(name);
  wait(name, -1);
  const Bucket& bucket = at(name);
  if (bucket.exact) {
    expect_sum(bucket, 0, gw_bucket_elements(bucket.handle));
  }
}

void Buckets::broadcast(const std::string& name, int root) {
  const Bucket& bucket = at(name);
  fill(bucket, 100 + gw_rank(bucket.job));
  must(gw_broadcast(bucket.handle, root));
  wait(name, -1);
  expect(bucket, 0, gw_bucket_elements(bucket.handle), 100 + root);
}

void Buckets::allgather(const std::string& name) {
  const Bucket& bucket = at(name);
  fill(bucket, gw_rank(bucket.job) + 1);
  must(gw_allgather(bucket.handle));
  wait(name, -1);
  for (int32_t rank = 0; rank < gw_world(bucket.job); ++rank) {
    const auto [first, elements] = shard_of(bucket.handle, rank);
    expect(bucket, first, elements, rank + 1);
  }
}

void Buckets::reduce_scatter(const std::string& name) {
  const Bucket& bucket = at(name);
  fill(bucket, gw_rank(bucket.job) + 1);
  must(gw_reduce_scatter(bucket.handle, GW_SUM));
  wait(name, -1);
  const auto [first, elements] = shard_of(bucket.handle, gw_rank(bucket.job));
  expect_sum(bucket, first, elements);
}

void Buckets::poison(const std::string& name) {
  const Bucket& bucket = at(name);
  fill(bucket, 1);
  if (gw_rank(bucket.job) == gw_world(bucket.job) - 1) {
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

double Buckets::pour(const std::string& name, bool noise) {
  const Bucket& bucket = at(name);
  const uint64_t elements = gw_bucket_elements(bucket.handle);
  auto* gradient = static_cast<float*>(gw_bucket_gradient(bucket.handle));
  std::mt19937_64 random(1000 * ++poured_ + static_cast<uint64_t>(gw_rank(bucket.job)));
  std::normal_distribution<float> normal;
  for (uint64_t i = 0; i < elements; ++i) {
    gradient[i] = noise ? normal(random) : 0.0F;
  }
  must(gw_allreduce(bucket.handle, GW_SUM));
  wait(name, -1);
  const float* result = static_cast<const float*>(gw_bucket_result(bucket.handle));
  double sum = 0;
  for (uint64_t i = 0; i < elements; ++i) {
    sum += std::abs(result[i]);
  }
  return sum;
}

void Buckets::reduce_all(const std::string& prefix, uint64_t seed) {
  std::vector<const Bucket*> order;
  for (const auto& [name, bucket] : buckets_) {
    if (name.rfind(prefix, 0) == 0) {
      order.push_back(&bucket);
    }
  }
  if (order.empty()) {
    throw Wrong("usage: no bucket of that name was created");
  }
  gw_job* job = order.front()->job;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed + static_cast<uint64_t>(gw_rank(job))));
  size_t submitted = 0, ended = 0;
  while (ended < order.size()) {
    while (submitted < order.size()) {
      const Bucket& bucket = *order[submitted];
      fill(bucket, gw_rank(job) + 1);
      const gw_status status = gw_allreduce(bucket.handle, GW_SUM);
      if (status == GW_ERR_BUSY && submitted > ended) {
        break;  // the ring is full
      }
      must(status);
      ++submitted;
    }
    gw_bucket* bucket = nullptr;
    must(gw_wait_any(job, -1, &bucket, nullptr));
    ++ended;
  }
  for (const Bucket* bucket : order) {
    expect_sum(*bucket, 0, gw_bucket_elements(bucket->handle));
  }
}

}  // namespace cluster
