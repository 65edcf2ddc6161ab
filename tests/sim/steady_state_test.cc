// After the first operations the engine allocates nothing. A program of its own: it replaces operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/sim/sim_cluster.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<uint64_t> allocations{0};

void* allocate(size_t size, size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) {
    allocations.fetch_add(1, std::memory_order_relaxed);
  }
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(size == 0 ? 1 : size)
             : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

}  // namespace

void* operator new(size_t size) {
  return allocate(size, 1);
}
void* operator new[](size_t size) {
  return allocate(size, 1);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace gradwire::sim {
namespace {

TEST(SteadyState, AllocatesNothing) {
  ClusterOptions options;
  options.nodes = 4;
  options.local_ranks = 2;
  options.network.max_payload = 70'000;
  options.network.send_window = 2;
  // Every step alike, so that the first ones show how many buffers are ever lent at once.
  options.network.inline_completions = 0;
  options.network.late_completions = 0;
  Cluster cluster(options);
  const std::vector<const char*> codecs = {"none", "l8", "lads", "laco", "", "", "none", "laco"};
  for (uint32_t i = 0; i < codecs.size(); ++i) {
    BucketShape shape;
    shape.layers = {i == 5 ? 97u : 90'001u, 7};  // eight ranks divide it
    shape.codec = codecs[i];
    shape.algorithm = i < 6 ? engine::Algorithm::kRing : engine::Algorithm::kDirect;
    shape.settings.warm_start_steps = 1;
    if (shape.codec == "l8") {  // whose messages keep their size, however residuals are rounded
      shape.settings.residuals = compress::ResidualType::kBfloat16;
    }
    cluster.add_bucket(i + 1, shape);
    for (uint32_t r = 0; r < cluster.world(); ++r) {
      uint32_t k = 0;
      for (float& value : cluster.rank(r).gradients[i + 1]->as<float>()) {
        value = static_cast<float>(++k % 1009) - 500;
      }
    }
  }
  // Every bucket's kind of operation changes from step to step.
  const auto operation_of = [](int number, uint32_t bucket) {
    constexpr uint8_t kKinds[] = {layout::kOpAllreduce, layout::kOpReduceScatter, layout::kOpAllreduce,
                                  layout::kOpBroadcast, layout::kOpAllgather};
    return bucket == 0 ? layout::kOpBarrier : kKinds[number % std::size(kKinds)];
  };
  const auto step = [&](int number, bool count) {
    for (uint32_t bucket = 0; bucket <= codecs.size(); ++bucket) {
      Request request;
      request.operation = operation_of(number, bucket);
      request.root = request.operation == layout::kOpBroadcast ? bucket % cluster.world() : 0;
      cluster.submit_all(bucket, request);
    }
    // Only what the engines do is counted, not the network's own messages.
    do {
      size_t work = 1;
      while (work > 0) {
        work = 0;
        counting.store(count, std::memory_order_relaxed);
        for (uint32_t n = 0; n < cluster.nodes(); ++n) {
          work += cluster.node(n).engine->poll();
        }
        counting.store(false, std::memory_order_relaxed);
      }
    } while (cluster.network().step());
    cluster.settle();
  };
  for (int i = 0; i < 20; ++i) {
    step(i, false);
  }
  for (int i = 0; i < 12; ++i) {
    step(i, true);
  }
  EXPECT_EQ(allocations.load(std::memory_order_relaxed), 0u);
  for (uint32_t bucket = 0; bucket <= codecs.size(); ++bucket) {
    EXPECT_TRUE(cluster.finish(bucket));
    EXPECT_EQ(cluster.rank(0).sequences[bucket], 32u);
  }
}

}  // namespace
}  // namespace gradwire::sim
