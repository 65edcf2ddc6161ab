// Counts what a test program allocates. In a file of its own, so that the compiler cannot look inside.
#include <cstdlib>
#include <new>

#include "tests/transport/transport_harness.h"

namespace {
uint64_t count = 0;
}

namespace gradwire::transport::testing {
uint64_t allocations() {
  return count;
}
}  // namespace gradwire::transport::testing

void* operator new(size_t size) {
  ++count;
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
