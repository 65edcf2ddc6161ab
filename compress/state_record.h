// What the parts of the state reader share: the numbers of a record, its checksum, and words about both.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "compress/bytes.h"
#include "compress/crc32c.h"
#include "compress/state_layout.h"
#include "config/base/one_line.h"

namespace gradwire::compress {

namespace layout = state_layout;

// Reads numbers one after the other out of a record.
class Numbers {
 public:
  explicit Numbers(const std::vector<std::byte>& bytes, size_t from = 0) : at_(bytes.data() + from) {}
  template <typename T>
  T next() {
    const T value = load<T>(at_);
    at_ += sizeof(T);
    return value;
  }

 private:
  const std::byte* at_;
};

inline std::string text_at(const std::vector<std::byte>& bytes, size_t from, size_t count) {
  return {reinterpret_cast<const char*>(bytes.data()) + from, count};
}

inline std::string hex(uint32_t value) {
  std::array<char, 11> text;
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

inline std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    std::array<char, 4> two;
    std::snprintf(two.data(), two.size(), "%02x", static_cast<unsigned>(byte));
    text.append(text.empty() ? "" : " ").append(two.data());
  }
  return text;
}

// "is 0x00000002 and should be 0x0a0b0c0d".
inline std::string is_not(uint32_t found, uint32_t expected) {
  return "is " + hex(found) + " and should be " + hex(expected);
}

// The same of the checksum that a record ends with.
inline std::string seal_is_not(const std::vector<std::byte>& record) {
  const auto bytes = std::span(record);
  return is_not(load<uint32_t>(bytes.last(layout::kCrcBytes).data()),
                crc32c(bytes.first(bytes.size() - layout::kCrcBytes)));
}

inline bool seal_fits(const std::vector<std::byte>& record, uint32_t& all_crc) {
  const auto bytes = std::span(record);
  const auto crc = load<uint32_t>(bytes.last(layout::kCrcBytes).data());
  all_crc = crc32c(bytes.last(layout::kCrcBytes), all_crc);
  return crc == crc32c(bytes.first(bytes.size() - layout::kCrcBytes));
}

// What a name may not be, as its sentence.
inline std::string name_is_no_text(const std::string& name) {
  return "its name, \"" + without_controls(beginning(name, 100), '?') +
         "\", holds control characters or is not UTF-8";
}

}  // namespace gradwire::compress
