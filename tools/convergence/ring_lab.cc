// libgradwire_ring_lab.so: the reducers of all nodes of a ring in one process, for training experiments.
//
// Makes the reducers as daemons do (from layers and a compression policy), and runs them in the ring of the
// tests of compression, which has the engine's schedule, around the ring or straight to the owners of chunks.
// One local rank a node. Not thread-safe.
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compress/reducer.h"
#include "config/policy_json.h"
#include "daemon/control/bucket_reducer.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/message.h"
#include "daemon/engine/small_messages.h"
#include "tests/compress/loopback_ring.h"

namespace {

using gradwire::Code;
using gradwire::ok_status;
using gradwire::Result;
using gradwire::Status;
using gradwire::compress::BucketReducer;
using gradwire::compress::LoopbackRing;
using gradwire::compress::OperationSettings;
using gradwire::compress::ReduceOp;
using gradwire::engine::Algorithm;
using gradwire::engine::all_small;
using nlohmann::json;

constexpr uint32_t kMaxNodes = 64;
constexpr uint32_t kMaxMessageBytes = 130048;  // what a daemon has on TCP
constexpr uint64_t kHeaderBytes = sizeof(gradwire::engine::MessageHeader);

}  // namespace

struct gwlab_counts {
  uint64_t operations;    // committed
  uint64_t wire_bytes;    // encoded gradients sent by all nodes, without headers
  uint64_t header_bytes;  // of the messages that carry them, and of the grants
  uint64_t raw_bytes;     // encoded gradients of an uncompressed ring
  double residual_norm;   // L2 over all nodes
  double density;         // of node 0's last committed operation
};

struct gwlab {
  gwlab(std::vector<std::unique_ptr<BucketReducer>> reducers, uint64_t bucket_elements);

  Result<bool> allreduce(const float* gradients, float* average);

  LoopbackRing ring;
  const uint64_t elements;
  uint64_t grants_each = 0;                 // of one operation
  std::vector<std::vector<float>> results;  // [node - 1][element]
  uint64_t operations = 0;
  uint64_t raw_bytes = 0;
  uint64_t grants = 0;

 private:
  Status compare(const float* average) const;
};

namespace {

std::string& error_text() {
  thread_local std::string text;
  return text;
}

Result<Algorithm> algorithm_of(const std::string& name) {
  if (name == "ring") {
    return Algorithm::kRing;
  }
  if (name == "direct") {
    return Algorithm::kDirect;
  }
  return Status(Code::kInvalidArgument, "algorithm " + name + " does not exist; use ring or direct");
}

// {"nodes": P, "algorithm": NAME, "layers": [[NAME, ELEMENTS]...], "defaults": {settings}, "rules":
// [{"match": GLOB, settings}...]}
Result<std::unique_ptr<gwlab>> make_lab(const json& document) {
  json policy_document = gradwire::config::policy_to_json({});
  policy_document["defaults"].update(document.at("defaults"));
  policy_document["rules"] = document.value("rules", json::array());
  const auto policy = gradwire::config::policy_from_json(policy_document);
  if (!policy.ok()) {
    return policy.status();
  }
  gradwire::control::Manifest manifest;
  manifest.name = "lab";
  manifest.dtype = static_cast<uint8_t>(gradwire::compress::Dtype::kFloat32);
  manifest.flags = gradwire::control::kBucketGradient;
  for (const json& layer : document.at("layers")) {
    manifest.layers.emplace_back(layer.at(0).get<std::string>(), layer.at(1).get<uint64_t>());
  }
  const auto nodes = document.at("nodes").get<uint32_t>();
  if (nodes < 1 || nodes > kMaxNodes) {
    return Status(Code::kInvalidArgument, "a lab of " + std::to_string(nodes) + " nodes; use 1 to 64");
  }
  const Result<Algorithm> algorithm = algorithm_of(document.at("algorithm").get<std::string>());
  if (!algorithm.ok()) {
    return algorithm.status();
  }
  std::vector<std::unique_ptr<BucketReducer>> reducers;
  for (uint32_t i = 0; i < nodes; ++i) {
    const gradwire::control::BucketPlace place{nodes, i, kMaxMessageBytes, *algorithm};
    auto reducer = gradwire::control::make_reducer(manifest, place, *policy);
    if (!reducer.ok()) {
      return reducer.status();
    }
    reducers.push_back(std::move(reducer).value());
  }
  return std::make_unique<gwlab>(std::move(reducers), gradwire::control::manifest_elements(manifest));
}

}  // namespace

gwlab::gwlab(std::vector<std::unique_ptr<BucketReducer>> reducers, uint64_t bucket_elements)
    : ring(std::move(reducers)), elements(bucket_elements) {
  if (ring.size() > 1 && !all_small(ring.node(0).geometry())) {
    grants_each = ring.size() * (ring.node(0).collects() ? ring.size() - 1 : 1);
  }
  results.assign(ring.size() - 1, std::vector<float>(elements));
}

Status gwlab::compare(const float* average) const {
  for (size_t i = 0; i < results.size(); ++i) {
    if (elements > 0 && std::memcmp(results[i].data(), average, elements * sizeof(float)) != 0) {
      return {Code::kInternal, "the results of nodes 0 and " + std::to_string(i + 1) + " differ"};
    }
  }
  return ok_status();
}

// True: committed. False: not finite, so abandoned, and `average` means nothing.
Result<bool> gwlab::allreduce(const float* gradients, float* average) {
  OperationSettings settings;
  settings.op = ReduceOp::kAverage;
  settings.ranks = static_cast<uint32_t>(ring.size());
  std::vector<std::vector<const void*>> locals;
  std::vector<void*> outputs;
  for (size_t i = 0; i < ring.size(); ++i) {
    locals.push_back({gradients + i * elements});
    outputs.push_back(i == 0 ? average : results[i - 1].data());
  }
  raw_bytes += 2 * (ring.size() - 1) * elements * sizeof(float);
  grants += grants_each;
  Result<bool> committed = ring.run(settings, locals, outputs);
  if (!committed.ok() || !*committed) {
    return committed;
  }
  operations += 1;
  GRADWIRE_RETURN_IF_ERROR(compare(average));
  return true;
}

extern "C" {

// NULL: gwlab_error() says why.
__attribute__((visibility("default"))) gwlab* gwlab_create(const char* document) {
  try {
    auto lab = make_lab(json::parse(document));
    if (lab.ok()) {
      return std::move(lab).value().release();
    }
    error_text() = lab.status().message();
  } catch (const std::exception& error) {
    error_text() = error.what();
  }
  return nullptr;
}

// `gradients` has nodes x elements. 1: `average` has the result; 0: it was not finite, nothing was applied;
// -1: gwlab_error() says what failed, and the lab can only be destroyed. Nodes whose results differ in one
// bit are such a failure.
__attribute__((visibility("default"))) int gwlab_allreduce(gwlab* lab, const float* gradients,
                                                           float* average) {
  try {
    const Result<bool> done = lab->allreduce(gradients, average);
    if (done.ok()) {
      return *done ? 1 : 0;
    }
    error_text() = done.status().message();
  } catch (const std::exception& error) {
    error_text() = error.what();
  }
  return -1;
}

__attribute__((visibility("default"))) void gwlab_count(gwlab* lab, gwlab_counts* counts) {
  double squares = 0;
  for (size_t i = 0; i < lab->ring.size(); ++i) {
    const double norm = lab->ring.node(i).stats().residual_norm;
    squares += norm * norm;
  }
  *counts = {
      lab->operations, lab->ring.sent_bytes(), kHeaderBytes * (lab->ring.sent_messages() + lab->grants),
      lab->raw_bytes,  std::sqrt(squares),     lab->ring.node(0).stats().density};
}

// Of the calling thread's last failure.
__attribute__((visibility("default"))) const char* gwlab_error() {
  return error_text().c_str();
}

__attribute__((visibility("default"))) void gwlab_destroy(gwlab* lab) {
  delete lab;
}

}  // extern "C"
