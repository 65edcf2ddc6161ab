// Samples of what operations left in the result regions, by which nodes find out that theirs differ
// (docs/control-protocol.md, "Results").
//
// All nodes sample the same places of the same operations, because both follow from the epoch's key, the
// bucket and the sequence number alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/engine/engine.h"

namespace gradwire::engine {

// Results up to this are hashed whole; of larger ones as many bytes, in windows.
inline constexpr size_t kSampledBytes = 4096;
inline constexpr size_t kSampleWindow = 256;

// The operation's number in the lottery; equal on all nodes.
uint64_t operation_lot(const EpochKey& key, uint32_t bucket, uint64_t sequence);

// Allocates nothing and reads at most kSampledBytes. `flags`: of the completion.
uint64_t hash_result(std::span<const std::byte> result, uint64_t lot, uint32_t flags);

// The samples of a job since the last take(). Of more than it holds those with the lowest lots: nodes that
// are asked at about the same time keep mostly the same ones.
class ResultSamples {
 public:
  static constexpr size_t kMost = kMaxResultSamples;

  // Whether keep() would keep it: what is not kept need not be hashed.
  bool wants(uint64_t lot) const { return count_ < kMost || lot < heap_.front().lot; }
  void keep(uint64_t lot, const ResultSample& sample);
  // In no particular order; empty afterwards.
  std::vector<ResultSample> take();

 private:
  struct Entry {
    uint64_t lot = 0;
    ResultSample sample;
  };
  std::array<Entry, kMost> heap_;  // the highest lot first
  size_t count_ = 0;
};

}  // namespace gradwire::engine
