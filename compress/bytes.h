// Little-endian loads and stores at any alignment, and a cursor over bytes that came from elsewhere.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gradwire::compress {

static_assert(std::endian::native == std::endian::little, "messages are little-endian memory images");

template <typename T>
inline T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
inline void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// L8 codes, as they lie in a message.
inline const uint8_t* as_codes(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

// Hands out consecutive parts of a message; a part that is not there is a null pointer.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : at_(bytes.data()), left_(bytes.size()) {}

  size_t left() const { return left_; }

  const std::byte* take(size_t count) {
    if (count > left_) {
      return nullptr;
    }
    const std::byte* part = at_;
    at_ += count;
    left_ -= count;
    return part;
  }

 private:
  const std::byte* at_;
  size_t left_;
};

}  // namespace gradwire::compress
