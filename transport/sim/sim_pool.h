// Small parts of the simulated network: random numbers, a queue that keeps its memory, pooled messages.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "config/base/scramble.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define GRADWIRE_SIM_POISON(address, size) ASAN_POISON_MEMORY_REGION(address, size)
#define GRADWIRE_SIM_UNPOISON(address, size) ASAN_UNPOISON_MEMORY_REGION(address, size)
#else
#define GRADWIRE_SIM_POISON(address, size) (static_cast<void>(address), static_cast<void>(size))
#define GRADWIRE_SIM_UNPOISON(address, size) (static_cast<void>(address), static_cast<void>(size))
#endif

namespace gradwire::transport::sim_internal {

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers everywhere, unlike the standard's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() { return scramble(state_ += kGolden); }
  uint64_t up_to(uint64_t limit) { return limit == 0 ? 0 : next() % (limit + 1); }

 private:
  uint64_t state_;
};

template <typename T>
class Fifo {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return slots_[head_]; }
  void push(T value) {
    if (size_ == slots_.size()) {
      grow();
    }
    slots_[(head_ + size_++) & (slots_.size() - 1)] = std::move(value);
  }
  T pop() {
    T value = std::move(slots_[head_]);
    head_ = (head_ + 1) & (slots_.size() - 1);
    --size_;
    return value;
  }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 8 : slots_.size() * 2);
    for (size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(slots_[(head_ + i) & (slots_.size() - 1)]);
    }
    slots_ = std::move(larger);
    head_ = 0;
  }
  std::vector<T> slots_;  // a power of two of them
  size_t head_ = 0, size_ = 0;
};

// A message on the wire. Its bytes start at odd addresses; with the address sanitizer everything around them,
// and a message that is not in use, is poisoned.
struct Message {
  std::unique_ptr<std::byte[]> memory;
  size_t capacity = 0;
  uint64_t arrival = 0;
  std::span<std::byte> header, payload;
};

class MessagePool {
 public:
  ~MessagePool() {
    for (const auto& message : all_) {
      GRADWIRE_SIM_UNPOISON(message->memory.get(), message->capacity);
    }
  }

  Message* acquire(size_t header_size, size_t payload_size, uint64_t offset_seed) {
    constexpr size_t kSlack = 64;
    const size_t needed = header_size + payload_size + kSlack;
    const auto size_class = static_cast<size_t>(std::bit_width(needed - 1));
    auto& free = free_[size_class];
    if (free.empty()) {
      auto message = std::make_unique<Message>();
      message->capacity = size_t{1} << size_class;
      message->memory = std::make_unique<std::byte[]>(message->capacity);
      free.push_back(message.get());
      all_.push_back(std::move(message));
    }
    Message* message = free.back();
    free.pop_back();
    // memory is at least 8-byte aligned, so odd offsets are odd addresses.
    const size_t header_at = 1 + 2 * (offset_seed % 8);
    const size_t payload_at = (header_at + header_size + 1 + 2 * ((offset_seed >> 8) % 8)) | 1;
    GRADWIRE_SIM_POISON(message->memory.get(), message->capacity);
    GRADWIRE_SIM_UNPOISON(message->memory.get() + header_at, header_size);
    GRADWIRE_SIM_UNPOISON(message->memory.get() + payload_at, payload_size);
    message->header = {message->memory.get() + header_at, header_size};
    message->payload = {message->memory.get() + payload_at, payload_size};
    return message;
  }

  // Spoils the first bytes, so that a receiver that kept a span does not get away with it.
  void release(Message* message) {
    const auto spoil = [](std::span<std::byte> bytes) {
      std::memset(bytes.data(), 0xdb, bytes.size() < 256 ? bytes.size() : 256);
    };
    spoil(message->header);
    spoil(message->payload);
    GRADWIRE_SIM_POISON(message->memory.get(), message->capacity);
    free_[static_cast<size_t>(std::bit_width(message->capacity - 1))].push_back(message);
  }

 private:
  std::vector<std::unique_ptr<Message>> all_;
  std::array<std::vector<Message*>, 65> free_;
};

}  // namespace gradwire::transport::sim_internal
