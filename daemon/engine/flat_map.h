// A hash map from 64-bit keys to pointers: open addressing, linear probing, no allocation on lookups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::engine {

template <typename T>
class FlatMap {
 public:
  T* find(uint64_t key) const {
    if (slots_.empty()) {
      return nullptr;
    }
    for (size_t at = start(key);; at = (at + 1) & mask()) {
      if (slots_[at].value == nullptr) {
        return nullptr;
      }
      if (slots_[at].key == key) {
        return slots_[at].value;
      }
    }
  }

  // The key must not be there; `value` is not null.
  void insert(uint64_t key, T* value) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    place(key, value);
    ++size_;
  }

  void erase(uint64_t key) {
    if (slots_.empty()) {
      return;
    }
    size_t at = start(key);
    while (slots_[at].value != nullptr && slots_[at].key != key) {
      at = (at + 1) & mask();
    }
    if (slots_[at].value == nullptr) {
      return;
    }
    slots_[at].value = nullptr;
    --size_;
    // What follows in the same run may have been pushed past the hole: place it again.
    for (at = (at + 1) & mask(); slots_[at].value != nullptr; at = (at + 1) & mask()) {
      const Slot moved = slots_[at];
      slots_[at].value = nullptr;
      place(moved.key, moved.value);
    }
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = 0;
    T* value = nullptr;  // null: free
  };
  size_t mask() const { return slots_.size() - 1; }
  size_t start(uint64_t key) const {
    return static_cast<size_t>((key * 0x9e3779b97f4a7c15u) >> 32) & mask();  // Fibonacci hashing
  }
  void place(uint64_t key, T* value) {
    size_t at = start(key);
    while (slots_[at].value != nullptr) {
      at = (at + 1) & mask();
    }
    slots_[at].key = key;
    slots_[at].value = value;
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.value != nullptr) {
        place(slot.key, slot.value);
      }
    }
  }

  std::vector<Slot> slots_;  // a power of two of them, at most half in use
  size_t size_ = 0;
};

}  // namespace gradwire::engine
