// What the fuzz targets share: numbers out of the input, and a claim that must hold whatever the input is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

namespace gradwire::fuzz {

inline void require(bool holds, const char* claim) {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %s\n", claim);
    std::abort();
  }
}

// Consumes an input from its beginning; zeros where it has ended.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }
  std::span<const uint8_t> rest() const { return left_; }

  template <typename T = uint8_t>
  T number() {
    T value{};
    const auto bytes = take(sizeof value);
    if (!bytes.empty()) {
      std::memcpy(&value, bytes.data(), bytes.size());
    }
    return value;
  }
  // At most `count` bytes.
  std::span<const uint8_t> take(size_t count) {
    const auto part = left_.first(count < left_.size() ? count : left_.size());
    left_ = left_.subspan(part.size());
    return part;
  }
  // Up to the next newline, which is dropped.
  std::string_view line() {
    const std::string_view text(reinterpret_cast<const char*>(left_.data()), left_.size());
    const std::string_view line = text.substr(0, text.find('\n'));
    left_ = left_.subspan(line.size() < text.size() ? line.size() + 1 : line.size());
    return line;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace gradwire::fuzz
