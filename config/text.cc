#include "config/text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace gradwire::config {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none (Unicode, table 3-7).
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0U; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  const unsigned second = byte(1);
  if (first < 0x80) {
    return text.empty() ? 0 : 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return tail(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const bool fits = (first != 0xE0 || second >= 0xA0) && (first != 0xED || second <= 0x9F);
    return fits && tail(1) && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool fits = (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second <= 0x8F);
    return fits && tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

bool is_control(unsigned char c) {
  return c < 0x20 || c == 0x7F;
}

}  // namespace

std::optional<size_t> find_bad_byte(std::string_view text, bool allow_layout) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(text.substr(i, 4));
    const char c = text[i];
    const bool layout = allow_layout && (c == '\t' || c == '\n' || c == '\r');
    if (length == 0 || (is_control(static_cast<unsigned char>(c)) && !layout)) {
      return i;
    }
    i += length;
  }
  return std::nullopt;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxShown = 60;
  std::string out = "'";
  size_t i = 0;
  while (i < text.size() && i < kMaxShown) {
    const size_t length = sequence_length(text.substr(i, 4));
    if (length == 0 || is_control(static_cast<unsigned char>(text[i]))) {
      char hex[5];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(text[i]));
      out += hex;
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out + (i < text.size() ? "...'" : "'");
}

std::string list_words(const std::vector<std::string_view>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) {
      out += i + 1 == words.size() ? " or " : ", ";
    }
    out += words[i];
  }
  return out;
}

}  // namespace gradwire::config
