// Reading JSON documents that others wrote: parsing with limits, and typed access with ranges.
//
// Nothing throws. The first complaint is kept; every later access gives a harmless value.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/result.h"

namespace gradwire::control {

using Json = nlohmann::json;

inline constexpr int kMaxDepth = 16;                   // of nested arrays and objects in a document
inline constexpr size_t kMaxValues = size_t{1} << 20;  // names, values, arrays and objects in a document

// One object with a text member "type". kCorrupt says what is wrong; kInvalidArgument: it holds too much.
Result<Json> parse_document(std::string_view text);
// Always valid UTF-8: bad bytes become U+FFFD.
std::string write_document(const Json& document);

class Fields {
 public:
  // `object` must outlive this. Anything but an object is a complaint.
  explicit Fields(const Json& object);

  template <typename Integer = uint64_t>
  Integer number(const char* name, uint64_t min, uint64_t max) {
    return static_cast<Integer>(integer(name, min, max));
  }
  // false where it is missing.
  bool flag(const char* name);
  // Without control characters (config/base/one_line.h).
  std::string text(const char* name, size_t min_bytes, size_t max_bytes);
  // Twice as many hex digits as bytes.
  std::string hex(const char* name, size_t min_bytes, size_t max_bytes);
  // nullptr after a complaint.
  const Json* array(const char* name, size_t max_entries);
  const Json* object(const char* name);
  // An array of numbers.
  std::vector<uint32_t> numbers(const char* name, size_t max_entries, uint64_t max);

  void complain(const char* name, const std::string& what);
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  uint64_t integer(const char* name, uint64_t min, uint64_t max);
  const Json* find(const char* name);

  const Json& object_;
  Status status_;
};

std::string to_hex(std::string_view bytes);
// A sentence of another process in which control characters are blanks, at most `limit` bytes.
std::string clean(std::string_view text, size_t limit);

}  // namespace gradwire::control
