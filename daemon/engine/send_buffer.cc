#include "daemon/engine/send_buffer.h"

#include <algorithm>
#include <new>

namespace gradwire::engine {

bool BufferPool::grow() {
  auto* const memory = static_cast<std::byte*>(
      ::operator new[](std::max<size_t>(bytes_, 1), std::align_val_t{64}, std::nothrow));
  if (memory == nullptr) {
    return false;
  }
  memory_.emplace_back(memory);
  buffers_.push_back(std::make_unique<SendBuffer>(core_, memory));
  free_.reserve(buffers_.capacity());
  free_.push_back(buffers_.back().get());
  return true;
}

}  // namespace gradwire::engine
