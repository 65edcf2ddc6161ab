// libgradwire_ring_lab.so: the reducers of all nodes of a ring in one process, for training experiments.
//
// Makes the reducers as daemons do (from layers and a compression policy), and runs the engine's schedule
// over memory: node i starts with chunk i, hop k of chunk c happens at node (c + k) mod P, the owner (the
// last hop's node) finishes, everybody decodes the owner's bytes. One local rank a node. Not thread-safe.
#include <algorithm>
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

namespace {

using gradwire::Code;
using gradwire::ok_status;
using gradwire::Result;
using gradwire::Status;
using gradwire::compress::BucketReducer;
using gradwire::compress::HopOutcome;
using gradwire::compress::OperationSettings;
using gradwire::compress::ReduceOp;
using gradwire::compress::Segment;
using nlohmann::json;

constexpr uint32_t kMaxNodes = 64;
constexpr uint32_t kMaxMessageBytes = 130048;  // what a daemon has on TCP

}  // namespace

struct gwlab_counts {
  uint64_t operations;   // committed
  uint64_t wire_bytes;   // encoded gradients sent by all nodes, without headers
  uint64_t raw_bytes;    // the same of an uncompressed ring
  double residual_norm;  // L2 over all nodes
  double density;        // of node 0's last committed operation
  uint32_t warm_stage;   // of node 0; 255: at the target
  uint32_t padding;
};

struct gwlab {
  std::vector<std::unique_ptr<BucketReducer>> nodes;
  uint64_t elements = 0;
  std::vector<std::vector<float>> results;  // [node - 1][element]
  std::vector<std::byte> sent;              // a node's message in the making, and what arrived at it
  std::vector<std::byte> arrived;
  uint64_t operations = 0;
  uint64_t wire_bytes = 0;
  uint64_t raw_bytes = 0;

  Result<bool> allreduce(const float* gradients, float* average);

 private:
  Status reduce(const Segment& segment, const float* gradients, float* average, bool& not_finite);
  Status compare(const float* average) const;
};

namespace {

std::string& error_text() {
  thread_local std::string text;
  return text;
}

// {"nodes": P, "layers": [[NAME, ELEMENTS]...], "defaults": {settings}, "rules": [{"match": GLOB,
// settings}...]}
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
  auto lab = std::make_unique<gwlab>();
  lab->elements = gradwire::control::manifest_elements(manifest);
  for (uint32_t i = 0; i < nodes; ++i) {
    auto reducer = gradwire::control::make_reducer(manifest, nodes, kMaxMessageBytes, *policy, i);
    if (!reducer.ok()) {
      return reducer.status();
    }
    lab->nodes.push_back(std::move(reducer).value());
  }
  lab->results.assign(nodes - 1, std::vector<float>(lab->elements));
  lab->sent.resize(kMaxMessageBytes);
  lab->arrived.resize(kMaxMessageBytes);
  return lab;
}

}  // namespace

// Reduce-scatter and allgather of one segment.
Status gwlab::reduce(const Segment& segment, const float* gradients, float* average, bool& not_finite) {
  const auto count = static_cast<uint32_t>(nodes.size());
  uint32_t size = 0;
  for (uint32_t hop = 0; hop < count; ++hop) {
    const uint32_t at = (segment.chunk + hop) % count;
    const void* const local = gradients + at * elements;
    const Result<HopOutcome> done =
        nodes[at]->hop(segment, std::span(arrived).first(size), std::span(&local, 1), sent.data());
    GRADWIRE_RETURN_IF_ERROR(done.status());
    size = done->bytes;
    not_finite |= done->not_finite;
    std::swap(sent, arrived);
    if (hop + 1 < count) {
      wire_bytes += size;
    }
  }
  size = nodes[(segment.chunk + count - 1) % count]->finish(segment, arrived.data(), size);
  wire_bytes += uint64_t{size} * (count - 1);
  for (uint32_t i = 0; i < count; ++i) {
    float* const result = i == 0 ? average : results[i - 1].data();
    GRADWIRE_RETURN_IF_ERROR(nodes[i]->decode(segment, std::span(arrived).first(size), result));
  }
  return ok_status();
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
  settings.ranks = static_cast<uint32_t>(nodes.size());
  for (auto& node : nodes) {
    GRADWIRE_RETURN_IF_ERROR(node->begin(settings));
  }
  bool not_finite = false;
  for (uint32_t chunk = 0; chunk < nodes.size(); ++chunk) {
    for (const Segment& segment : nodes[0]->geometry().segments(chunk)) {
      GRADWIRE_RETURN_IF_ERROR(reduce(segment, gradients, average, not_finite));
    }
  }
  raw_bytes += 2 * (nodes.size() - 1) * elements * sizeof(float);
  for (auto& node : nodes) {
    not_finite ? node->abandon() : node->commit();
  }
  if (not_finite) {
    return false;
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

__attribute__((visibility("default"))) void gwlab_count(const gwlab* lab, gwlab_counts* counts) {
  double squares = 0;
  for (const auto& node : lab->nodes) {
    squares += node->stats().residual_norm * node->stats().residual_norm;
  }
  const auto first = lab->nodes[0]->stats();
  *counts = {lab->operations,
             lab->wire_bytes,
             lab->raw_bytes,
             std::sqrt(squares),
             first.density,
             first.warm_stage,
             0};
}

// Of the calling thread's last failure.
__attribute__((visibility("default"))) const char* gwlab_error() {
  return error_text().c_str();
}

__attribute__((visibility("default"))) void gwlab_destroy(gwlab* lab) {
  delete lab;
}

}  // extern "C"
