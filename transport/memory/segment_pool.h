// Buffers of one size for segments: aligned, populated in advance, reused last in, first out.
// Used by one thread. Memory is returned to the system when the pool is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "config/base/result.h"

namespace gradwire::transport {

class SegmentPool {
 public:
  // Told of each slab before its first buffer is handed out, so that a transport can register the memory.
  using OnSlab = std::function<void(std::span<std::byte>)>;

  explicit SegmentPool(size_t bytes_per_segment, OnSlab on_slab = {});
  ~SegmentPool();
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;

  // bytes_per_segment() bytes at a multiple of 64; nullptr if the system has no memory.
  std::byte* acquire();
  void release(std::byte* segment);  // one that acquire() returned
  Status reserve(size_t segments);   // so that this many are there without growing

  size_t bytes_per_segment() const { return bytes_; }
  size_t in_use() const { return total_ - free_.size(); }
  size_t total() const { return total_; }
  uint64_t growths() const { return slabs_.size(); }  // constant in the steady state

 private:
  bool grow();

  const size_t bytes_;
  const size_t stride_;
  const OnSlab on_slab_;
  size_t total_ = 0;
  std::vector<std::byte*> free_;
  std::vector<std::span<std::byte>> slabs_;
};

}  // namespace gradwire::transport
