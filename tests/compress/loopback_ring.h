// A ring of reducers in one process: what the engine does with them, without a network.
//
// Node i starts with chunk i; hop k of chunk c happens at node (c + k) mod P; the owner, (c + P - 1) mod P,
// encodes last and finishes, and everybody decodes its bytes. Where reducers collect, all others send their
// shares straight to the owner instead, who takes them in by their distance to the left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compress/reducer.h"

namespace gradwire::compress {

class LoopbackRing {
 public:
  using Observer = std::function<void(const Segment&, std::span<const std::byte>)>;

  explicit LoopbackRing(std::vector<std::unique_ptr<BucketReducer>> nodes) : nodes_(std::move(nodes)) {}

  size_t size() const { return nodes_.size(); }
  BucketReducer& node(size_t i) { return *nodes_[i]; }

  // What all nodes have sent: encoded bytes, and the messages that carry them.
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t sent_messages() const { return sent_messages_; }

  // Called with every finished segment.
  void observe(Observer observer) { observer_ = std::move(observer); }

  // Called with every hop's number and bytes.
  void observe_hops(std::function<void(uint32_t, size_t)> observer) { hops_ = std::move(observer); }

  // locals[node][rank] and results[node] are starts of whole buckets. True if the operation was committed,
  // false if it was not finite: then it was abandoned and the results poisoned.
  Result<bool> run(const OperationSettings& settings, const std::vector<std::vector<const void*>>& locals,
                   const std::vector<void*>& results) {
    for (auto& node : nodes_) {
      GRADWIRE_RETURN_IF_ERROR(node->begin(settings));
    }
    bool not_finite = false;
    const auto nodes = static_cast<uint32_t>(nodes_.size());
    for (uint32_t chunk = 0; chunk < nodes; ++chunk) {
      for (const Segment& segment : nodes_[0]->geometry().segments(chunk)) {
        std::vector<std::byte> arrived;
        GRADWIRE_RETURN_IF_ERROR(nodes_[0]->collects() ? reduce_directly(segment, locals, arrived, not_finite)
                                                       : reduce_around(segment, locals, arrived, not_finite));
        finish_at((chunk + nodes - 1) % nodes, segment, arrived);
        count(arrived, nodes - 1);
        const auto bytes = std::span<const std::byte>(arrived).subspan(1);
        if (observer_) {
          observer_(segment, bytes);
        }
        for (uint32_t i = 0; i < nodes; ++i) {
          GRADWIRE_RETURN_IF_ERROR(nodes_[i]->decode(segment, bytes, results[i]));
        }
      }
    }
    for (uint32_t i = 0; i < nodes; ++i) {
      if (not_finite) {
        nodes_[i]->abandon();
        for (uint32_t chunk = 0; chunk < nodes; ++chunk) {
          for (const Segment& segment : nodes_[i]->geometry().segments(chunk)) {
            nodes_[i]->poison(results[i], segment.first_element, segment.elements);
          }
        }
      } else {
        nodes_[i]->commit();
      }
    }
    return !not_finite;
  }

 private:
  Status reduce_around(const Segment& segment, const std::vector<std::vector<const void*>>& locals,
                       std::vector<std::byte>& arrived, bool& not_finite) {
    const auto nodes = static_cast<uint32_t>(nodes_.size());
    for (uint32_t hop = 0; hop < nodes; ++hop) {
      const uint32_t at = (segment.chunk + hop) % nodes;
      GRADWIRE_RETURN_IF_ERROR(hop_at(at, segment, locals[at], arrived, not_finite));
      if (hops_) {
        hops_(hop, arrived.size() - 1);
      }
      count(arrived, hop + 1 < nodes ? 1 : 0);
    }
    return ok_status();
  }

  Status reduce_directly(const Segment& segment, const std::vector<std::vector<const void*>>& locals,
                         std::vector<std::byte>& arrived, bool& not_finite) {
    const auto nodes = static_cast<uint32_t>(nodes_.size());
    const uint32_t owner = (segment.chunk + nodes - 1) % nodes;
    for (uint32_t distance = 1; distance < nodes; ++distance) {
      const uint32_t from = (owner + nodes - distance) % nodes;
      arrived.clear();
      GRADWIRE_RETURN_IF_ERROR(hop_at(from, segment, locals[from], arrived, not_finite));
      count(arrived, 1);
      if (distance + 1 < nodes) {
        const auto share = std::span<const std::byte>(arrived).subspan(1);
        GRADWIRE_RETURN_IF_ERROR(nodes_[owner]->collect(segment, share));
      }
    }
    return hop_at(owner, segment, locals[owner], arrived, not_finite);
  }

  // Messages lie at odd addresses in buffers without a byte to spare, and end at a guard.
  Status hop_at(uint32_t at, const Segment& segment, std::span<const void* const> locals,
                std::vector<std::byte>& arrived, bool& not_finite) {
    constexpr std::byte kGuard{0xa5};
    std::vector<std::byte> out(size_t{1} + segment.max_bytes + 1, kGuard);
    const auto input = std::span<const std::byte>(arrived).subspan(arrived.empty() ? 0 : 1);
    const Result<HopOutcome> done = nodes_[at]->hop(segment, input, locals, out.data() + 1);
    if (!done.ok()) {
      return done.status();
    }
    if (done->bytes > segment.max_bytes || out.front() != kGuard || out.back() != kGuard) {
      return {Code::kInternal, "a hop wrote outside its buffer"};
    }
    not_finite |= done->not_finite;
    out.resize(size_t{1} + done->bytes);
    arrived = std::move(out);
    return ok_status();
  }

  void finish_at(uint32_t owner, const Segment& segment, std::vector<std::byte>& sum) {
    const auto size = static_cast<uint32_t>(sum.size() - 1);
    const uint32_t finished = nodes_[owner]->finish(segment, sum.data() + 1, size);
    sum.resize(size_t{1} + std::min(finished, size));
  }

  // The byte before a message is no part of it.
  void count(std::span<const std::byte> message, uint32_t copies) {
    sent_messages_ += copies;
    sent_bytes_ += uint64_t{copies} * (message.size() - 1);
  }

  std::vector<std::unique_ptr<BucketReducer>> nodes_;
  Observer observer_;
  std::function<void(uint32_t, size_t)> hops_;
  uint64_t sent_bytes_ = 0;
  uint64_t sent_messages_ = 0;
};

}  // namespace gradwire::compress
