// Buckets: their creation, memory and end.
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "client/src/error.h"
#include "client/src/job.h"
#include "client/src/text.h"
#include "client/wire/limits.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

using wire::kMaxElements;
using wire::kMaxLayerNameBytes;
using wire::kMaxLayers;
using wire::kMaxNameBytes;

constexpr uint32_t kBucketFlags = GW_BUCKET_GRADIENT;

uint64_t dtype_bytes(gw_dtype dtype) {
  static constexpr uint64_t kBytes[] = {4, 2, 2, 8, 4, 8, 1};
  return dtype <= GW_UINT8 ? kBytes[dtype] : 0;
}

gw_status check_name(const char* what, const char* name) {
  if (name == nullptr || *name == '\0') {
    return fail(GW_ERR_INVALID, say("a ", what, " needs a name"));
  }
  const size_t bytes = ::strnlen(name, kMaxNameBytes + 1);
  if (bytes > kMaxNameBytes) {
    return fail(GW_ERR_INVALID, say("the name of a ", what, " (", excerpt(name, 40), ") is longer than ",
                                    kMaxNameBytes, " bytes"));
  }
  return check_text(say("the name of a ", what), {name, bytes});
}

// Checks the layers and writes them as the request's list.
gw_status collect_layers(const char* bucket, const gw_layer* layers, size_t count, json* list,
                         uint64_t* elements) {
  if (layers == nullptr || count == 0 || count > kMaxLayers) {
    return fail(GW_ERR_INVALID,
                say("bucket ", bucket, " has ", layers == nullptr ? 0 : count, " layers; 1 to ", kMaxLayers,
                    " are possible: ", count > kMaxLayers ? "make several buckets" : "name at least one"));
  }
  std::unordered_set<std::string_view> seen;
  size_t name_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (const gw_status status = check_name("layer", layers[i].name); status != GW_OK) {
      return status;
    }
    if (!seen.insert(layers[i].name).second) {
      return fail(GW_ERR_INVALID,
                  say("bucket ", bucket, " has two layers named ", excerpt(layers[i].name, 200)));
    }
    name_bytes += std::string_view(layers[i].name).size();
    if (name_bytes > kMaxLayerNameBytes) {
      return fail(GW_ERR_INVALID, say("bucket ", bucket, " has more than ", kMaxLayerNameBytes,
                                      " bytes of layers' names: make several buckets or use shorter names"));
    }
    if (layers[i].elements > kMaxElements - *elements) {
      return fail(GW_ERR_INVALID,
                  say("bucket ", bucket, " has more than ", kMaxElements, " elements: make several buckets"));
    }
    *elements += layers[i].elements;
    list->push_back(json::array({layers[i].name, layers[i].elements}));
  }
  return GW_OK;
}

gw_status read_created(gw_bucket* bucket, const Answer& answer) {
  uint64_t id = 0;
  uint64_t gradient_bytes = 0;
  uint64_t result_bytes = 0;
  if (!read_member(answer.document, "bucket", UINT32_MAX, &id) || id == layout::kBarrierBucket ||
      !read_member(answer.document, "gradient_bytes", INT64_MAX, &gradient_bytes) ||
      !read_member(answer.document, "result_bytes", INT64_MAX, &result_bytes) ||
      !read_member(answer.document, "codec", size_t{63}, &bucket->codec) || gradient_bytes < bucket->bytes ||
      result_bytes < bucket->bytes) {
    return fail(GW_ERR_PROTOCOL, say("gradwired described bucket ", bucket->name, " of ", bucket->bytes,
                                     " bytes in a way that libgradwire ", GRADWIRE_VERSION,
                                     " does not understand: install the same version of both"));
  }
  bucket->id = static_cast<uint32_t>(id);
  if (const gw_status status = bucket->gradient.map(answer.descriptors[0].get(), gradient_bytes, true,
                                                    "a bucket's gradient region");
      status != GW_OK) {
    return status;
  }
  return bucket->result.map(answer.descriptors[1].get(), result_bytes, false, "a bucket's result region");
}

gw_status create(gw_job* job, const char* name, gw_dtype dtype, const gw_layer* layers, size_t count,
                 uint32_t flags, gw_bucket** out) {
  if (const gw_status status = check_name("bucket", name); status != GW_OK) {
    return status;
  }
  if (dtype_bytes(dtype) == 0) {
    return fail(GW_ERR_INVALID, say("bucket ", name, ": dtype ", int{dtype}, " does not exist"));
  }
  if ((flags & ~kBucketFlags) != 0) {
    return fail(GW_ERR_UNSUPPORTED, say("bucket ", name, ": flags ", flags, " has bits that libgradwire ",
                                        GRADWIRE_VERSION, " does not know"));
  }
  auto bucket = std::make_unique<gw_bucket>();
  json list = json::array();
  if (const gw_status status = collect_layers(name, layers, count, &list, &bucket->elements);
      status != GW_OK) {
    return status;
  }
  if (const gw_status status = ended(job); status != GW_OK) {
    return status;
  }
  bucket->job = job;
  bucket->name = name;
  bucket->dtype = dtype;
  bucket->flags = flags;
  bucket->bytes = bucket->elements * dtype_bytes(dtype);
  Answer answer;
  if (const gw_status status =
          explain(job, job->connection.request({{"type", "bucket_create"},
                                                {"name", name},
                                                {"dtype", dtype},
                                                {"flags", flags},
                                                {"layers", std::move(list)}},
                                               "bucket_created", 2, daemon_deadline(*job), &answer));
      status != GW_OK) {
    return status;
  }
  if (const gw_status status = read_created(bucket.get(), answer); status != GW_OK) {
    return status;
  }
  bucket->slot = job->buckets.add(bucket.get());
  if (bucket->slot == BucketTable::kNone) {
    return fail(GW_ERR_EXHAUSTED,
                say("the job has all of its ", BucketTable::kChunk * BucketTable::kChunks - 1,
                    " possible buckets: destroy some"));
  }
  *out = bucket.release();
  return GW_OK;
}

gw_status destroy(gw_bucket* bucket) {
  gw_job* job = bucket->job;
  gw_status status = ended(job);
  // Acquire pairs with the waiting side's store of idle.
  if (status == GW_OK && bucket->state.load(std::memory_order_acquire) != kIdle) {
    return fail(GW_ERR_BUSY, say("bucket ", bucket->name, " has an operation that has not been waited for"));
  }
  if (status == GW_OK) {
    Answer answer;
    status = explain(job, job->connection.request({{"type", "bucket_destroy"}, {"bucket", bucket->id}}, "ok",
                                                  0, daemon_deadline(*job), &answer));
  } else {
    status = GW_OK;  // the end of the job is no failure of freeing a part of it
  }
  job->buckets.remove(bucket->slot);
  delete bucket;
  return status;
}

}  // namespace
}  // namespace gradwire::client

using namespace gradwire::client;  // NOLINT(google-build-using-namespace): this file is the library's edge

gw_status gw_bucket_create(gw_job* job, const char* name, gw_dtype dtype, const gw_layer* layers,
                           size_t layer_count, uint32_t flags, gw_bucket** bucket) {
  if (bucket == nullptr) {
    return fail(GW_ERR_INVALID, "the place for the bucket is NULL");
  }
  *bucket = nullptr;
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(job); status != GW_OK) {
      return status;
    }
    const SideLock side(&job->submitting);
    return side.entered() ? create(job, name, dtype, layers, layer_count, flags, bucket)
                          : refuse_second_thread("submitting");
  });
}

gw_status gw_bucket_destroy(gw_bucket* bucket) {
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(bucket); status != GW_OK) {
      return status;
    }
    const SideLock side(&bucket->job->submitting);
    return side.entered() ? destroy(bucket) : refuse_second_thread("submitting");
  });
}

uint64_t gw_bucket_elements(const gw_bucket* bucket) {
  return check_handle(bucket) == GW_OK ? bucket->elements : 0;
}

uint64_t gw_bucket_bytes(const gw_bucket* bucket) {
  return check_handle(bucket) == GW_OK ? bucket->bytes : 0;
}

void* gw_bucket_gradient(const gw_bucket* bucket) {
  return check_handle(bucket) == GW_OK ? bucket->gradient.address() : nullptr;
}

const void* gw_bucket_result(const gw_bucket* bucket) {
  return check_handle(bucket) == GW_OK ? bucket->result.address() : nullptr;
}

const char* gw_bucket_codec(const gw_bucket* bucket) {
  return check_handle(bucket) == GW_OK ? bucket->codec.c_str() : "";
}
