// The two ends of a shared-memory ring (session_layout.h says the rules). Header-only; no allocation, no
// system call; the owner of an end keeps its own counter privately and never reads it back from shared
// memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "client/layout/session_layout.h"

namespace gradwire::layout {

enum class RingState { kOk, kEmpty, kFull, kCorrupt };

template <typename Entry>
class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(RingControl* control, Entry* slots, uint32_t capacity)
      : control_(control), slots_(slots), capacity_(capacity) {}

  // Publishes one entry. kFull: the consumer is behind by the whole ring. kCorrupt: its counter makes no
  // sense. *wake is set if the consumer sleeps and its bell must be rung.
  RingState push(const Entry& entry, bool* wake) {
    const uint64_t head = control_->head.load(std::memory_order_acquire);  // pairs with pop's release store
    const uint64_t used = tail_ - head;
    if (used >= capacity_) {
      return used == capacity_ ? RingState::kFull : RingState::kCorrupt;
    }
    std::memcpy(&slots_[tail_ & (capacity_ - 1)], &entry, sizeof(Entry));
    ++tail_;
    // seq_cst, with the exchange below, against prepare_sleep's store and load: one of both sees the other.
    control_->tail.store(tail_, std::memory_order_seq_cst);
    *wake = control_->sleeping.exchange(0, std::memory_order_seq_cst) != 0;
    return RingState::kOk;
  }

 private:
  RingControl* control_ = nullptr;
  Entry* slots_ = nullptr;
  uint32_t capacity_ = 0;
  uint64_t tail_ = 0;
};

template <typename Entry>
class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(RingControl* control, const Entry* slots, uint32_t capacity)
      : control_(control), slots_(slots), capacity_(capacity) {}

  // Copies the next entry out. kCorrupt: the producer's counter makes no sense; the session must end.
  RingState pop(Entry* entry) {
    const uint64_t tail = control_->tail.load(std::memory_order_acquire);  // pairs with push's store
    const uint64_t ready = tail - head_;
    if (ready == 0) {
      return RingState::kEmpty;
    }
    if (ready > capacity_) {
      return RingState::kCorrupt;
    }
    std::memcpy(entry, &slots_[head_ & (capacity_ - 1)], sizeof(Entry));
    ++head_;
    control_->head.store(head_, std::memory_order_release);  // pairs with push's acquire load
    return RingState::kOk;
  }

  // True if there is something to pop (or the producer's counter is corrupt, which pop tells).
  bool ready() const { return control_->tail.load(std::memory_order_acquire) != head_; }

  // True if it is safe to sleep until the bell rings; false if there is something to pop.
  bool prepare_sleep() {
    control_->sleeping.store(1, std::memory_order_seq_cst);
    if (control_->tail.load(std::memory_order_seq_cst) != head_) {
      control_->sleeping.store(0, std::memory_order_relaxed);
      return false;
    }
    return true;
  }

  void cancel_sleep() { control_->sleeping.store(0, std::memory_order_relaxed); }

 private:
  RingControl* control_ = nullptr;
  const Entry* slots_ = nullptr;
  uint32_t capacity_ = 0;
  uint64_t head_ = 0;
};

}  // namespace gradwire::layout
