// Memory that the daemon passed, mapped once it is known that it cannot shrink under us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "client/include/gradwire/gradwire.h"

namespace gradwire::client {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Maps all of the memfd, pages populated. GW_ERR_PROTOCOL if its size is not `bytes` or it may still shrink
  // (a touch beyond the end would be SIGBUS); `what` names it in the sentence.
  gw_status map(int fd, uint64_t bytes, bool writable, const char* what);

  void* address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* address_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace gradwire::client
