// Segment buffers on their way to another node, and the pool that lends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/base/result.h"
#include "daemon/engine/intrusive_list.h"
#include "daemon/engine/message.h"
#include "transport/transport.h"

namespace gradwire::engine {

struct Bucket;
struct Link;
class Core;

// One message: its header, its payload, and the transport's notice that both may be used again.
class SendBuffer final : public transport::SendCompletion {
 public:
  SendBuffer(Core& core, std::byte* memory) : data(memory), core_(core) {}
  void on_sent(const Status& status) override;

  Bucket* bucket = nullptr;  // whose operation waits for it
  Link* link = nullptr;      // the way it takes
  MessageHeader header{};
  std::byte* const data;  // the transport's max_payload bytes, 64-byte aligned
  Hook<SendBuffer> hook{this};

 private:
  Core& core_;
};

// Last in, first out, so that what is lent next is still in the cache. Grows when empty and never shrinks: in
// the steady state it allocates nothing.
class BufferPool {
 public:
  BufferPool(Core& core, size_t bytes) : core_(core), bytes_(bytes) {}

  // nullptr: out of memory.
  SendBuffer* acquire() {
    if (free_.empty() && !grow()) {
      return nullptr;
    }
    SendBuffer* const buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void release(SendBuffer* buffer) { free_.push_back(buffer); }  // never beyond the reserved capacity
  size_t size() const { return buffers_.size(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  bool grow();

  Core& core_;
  const size_t bytes_;
  std::vector<std::unique_ptr<std::byte[], Free>> memory_;
  std::vector<std::unique_ptr<SendBuffer>> buffers_;
  std::vector<SendBuffer*> free_;
};

}  // namespace gradwire::engine
