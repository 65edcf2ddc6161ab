// Task: one coroutine of an operation, and the pool that its frame comes from.
//
// A task starts to run when it is called, and stays at its end until it is destroyed; it may be destroyed
// wherever it is suspended. Its first two parameters are (Core&, Bucket&): the frame comes from Core's pool.
#pragma once

#include <array>
#include <bit>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <new>
#include <utility>

namespace gradwire::engine {

class Core;
struct Bucket;

// Free lists of powers of two. A block keeps its pool and class in front of it, since a coroutine's operator
// delete is told neither.
class FramePool {
 public:
  FramePool() = default;
  ~FramePool() {
    for (Block* block : free_) {
      while (block != nullptr) {
        ::operator delete(std::exchange(block, block->next));
      }
    }
  }
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  void* allocate(size_t size) {
    const auto size_class = static_cast<size_t>(std::bit_width(size + sizeof(Block) - 1));
    Block* block = free_[size_class];
    if (block != nullptr) {
      free_[size_class] = block->next;
    } else {
      block = static_cast<Block*>(::operator new (size_t{1} << size_class));
    }
    block->pool = this;
    block->size_class = size_class;
    return block + 1;
  }

  static void release(void* frame) {
    Block* const block = static_cast<Block*>(frame) - 1;
    FramePool* const pool = block->pool;
    block->next = pool->free_[block->size_class];
    pool->free_[block->size_class] = block;
  }

 private:
  struct alignas(__STDCPP_DEFAULT_NEW_ALIGNMENT__) Block {
    union {
      FramePool* pool;
      Block* next;
    };
    size_t size_class;
  };
  std::array<Block*, 64> free_{};
};

FramePool& frame_pool(Core& core);

class Task {
 public:
  struct promise_type {
    static void* operator new(size_t size, Core& core, Bucket&) { return frame_pool(core).allocate(size); }
    static void operator delete(void* frame, size_t) { FramePool::release(frame); }
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const {}
    void unhandled_exception() const { std::terminate(); }
  };

  Task() = default;
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() { destroy(); }

  // Not from inside the coroutine itself.
  void destroy() {
    if (handle_) {
      std::exchange(handle_, nullptr).destroy();
    }
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace gradwire::engine
