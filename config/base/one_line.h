// What text from elsewhere may hold so that terminals and logs show it as it is, in one line: the one
// definition of "without control characters" for names, sentences and the configuration. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradwire {

struct Character {
  size_t bytes = 0;  // 0: the text does not start with well-formed UTF-8
  uint32_t value = 0;
};

// The first character of `text` (Unicode 15, table 3-7: no overlong forms, surrogates or values above
// 10FFFF).
inline Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty() || byte(0) < 0x80) {
    return {text.empty() ? 0U : 1U, text.empty() ? 0U : byte(0)};
  }
  const size_t bytes = byte(0) < 0xC2 ? 0 : byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : byte(0) < 0xF5 ? 4 : 0;
  if (bytes == 0 || text.size() < bytes) {
    return {};
  }
  uint32_t value = byte(0) & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return {};
    }
    value = value << 6U | (byte(i) & 0x3FU);
  }
  const uint32_t lowest = bytes == 2 ? 0x80 : bytes == 3 ? 0x800 : 0x10000;
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return value < lowest || value > 0x10FFFF || surrogate ? Character{} : Character{bytes, value};
}

// Controls (C0, DEL, C1), separators of lines and paragraphs, and what turns the direction of writing.
inline bool is_control(uint32_t value) {
  return value < 0x20 || (value >= 0x7F && value < 0xA0) || value == 0x061C ||
         (value >= 0x200E && value <= 0x200F) || (value >= 0x2028 && value <= 0x202E) ||
         (value >= 0x2066 && value <= 0x2069);
}

// Offset of the first byte that is not UTF-8 or belongs to a control character.
inline std::optional<size_t> find_control(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Character character = first_character(text.substr(i));
    if (character.bytes == 0 || is_control(character.value)) {
      return i;
    }
    i += character.bytes;
  }
  return std::nullopt;
}

// At most `most` bytes of its beginning, never half a character of UTF-8.
inline std::string_view beginning(std::string_view text, size_t most) {
  size_t length = most < text.size() ? most : text.size();
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  return text.substr(0, length);
}

// `instead` for every control character, and for every byte that is not UTF-8.
inline std::string without_controls(std::string_view text, char instead) {
  std::string out;
  while (const auto bad = find_control(text)) {
    out.append(text.substr(0, *bad)) += instead;
    text.remove_prefix(*bad);
    const size_t bytes = first_character(text).bytes;
    text.remove_prefix(bytes > 0 ? bytes : 1);
  }
  return out.append(text);
}

}  // namespace gradwire
