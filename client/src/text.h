// Sentences out of pieces.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "config/base/one_line.h"

namespace gradwire::client {

inline void append_piece(std::string* out, std::string_view piece) {
  out->append(piece);
}
template <typename Number>
requires std::is_arithmetic_v<Number>
void append_piece(std::string* out, Number piece) {
  out->append(std::to_string(piece));
}

template <typename... Pieces>
std::string say(const Pieces&... pieces) {
  std::string out;
  (append_piece(&out, pieces), ...);
  return out;
}

// At most `limit` bytes of text from elsewhere, for use in a sentence: control characters and bytes that are
// not UTF-8 become spaces.
inline std::string excerpt(std::string_view text, size_t limit) {
  return without_controls(text.substr(0, limit), ' ') + (text.size() > limit ? "..." : "");
}

// Why the epoch has ended, for a caller.
inline std::string_view abort_sentence(std::string_view cause) {
  return cause.empty() ? "gradwired ended the job's epoch without a cause" : cause;
}

}  // namespace gradwire::client
