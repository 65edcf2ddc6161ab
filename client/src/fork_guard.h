// Tells a forked child from the process that joined: a page that the kernel wipes in the child. No system
// call and no signal or atfork handler is needed to look.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace gradwire::client {

class ForkGuard {
 public:
  ForkGuard() = default;
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard() {
    if (word_ != nullptr) {
      ::munmap(word_, bytes_);
    }
  }

  // False: the kernel is older than 4.14, or has no memory.
  bool arm() {
    bytes_ = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* page = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
      return false;
    }
    if (::madvise(page, bytes_, MADV_WIPEONFORK) != 0) {
      ::munmap(page, bytes_);
      return false;
    }
    word_ = new (page) std::atomic<uint64_t>(kMagic);
    return true;
  }

  // Relaxed: only fork changes it, and a child has one thread.
  bool in_child() const { return word_ != nullptr && word_->load(std::memory_order_relaxed) != kMagic; }

 private:
  static constexpr uint64_t kMagic = 0x6b726f66656d6173;
  std::atomic<uint64_t>* word_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gradwire::client
