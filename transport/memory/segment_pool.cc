#include "transport/memory/segment_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

namespace gradwire::transport {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSlabBytes = size_t{2} << 20;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

SegmentPool::SegmentPool(size_t bytes_per_segment, OnSlab on_slab)
    : bytes_(bytes_per_segment),
      stride_(round_up(std::max<size_t>(bytes_per_segment, 1), kAlignment)),
      on_slab_(std::move(on_slab)) {}

SegmentPool::~SegmentPool() {
  for (const auto& slab : slabs_) {
    ::munmap(slab.data(), slab.size());
  }
}

std::byte* SegmentPool::acquire() {
  if (free_.empty() && !grow()) {
    return nullptr;
  }
  std::byte* segment = free_.back();
  free_.pop_back();
  return segment;
}

void SegmentPool::release(std::byte* segment) {
  assert(in_use() > 0);
  free_.push_back(segment);  // within the capacity that grow() reserved
}

Status SegmentPool::reserve(size_t segments) {
  while (total_ < segments) {
    if (!grow()) {
      return {Code::kResourceExhausted, "cannot reserve " + std::to_string(segments) + " segments of " +
                                            std::to_string(bytes_) +
                                            " bytes: the system has no memory for them"};
    }
  }
  return ok_status();
}

bool SegmentPool::grow() {
  const size_t size = round_up(std::max(kSlabBytes, stride_), kSlabBytes);
  // First touches cost more than the copies into the memory: pages are populated here.
  void* memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  const std::span slab(static_cast<std::byte*>(memory), size);
  slabs_.push_back(slab);
  if (on_slab_) {
    on_slab_(slab);
  }
  const size_t count = size / stride_;
  total_ += count;
  free_.reserve(total_);
  for (size_t i = count; i-- > 0;) {
    free_.push_back(slab.data() + i * stride_);
  }
  return true;
}

}  // namespace gradwire::transport
