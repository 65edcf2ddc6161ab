#include "config/text.h"

#include <cstdio>

#include "config/base/one_line.h"

namespace gradwire::config {

std::optional<size_t> find_bad_byte(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Character character = first_character(text.substr(i));
    const char c = text[i];
    const bool layout = c == '\t' || c == '\n' || c == '\r';
    if (character.bytes == 0 || (is_control(character.value) && !layout)) {
      return i;
    }
    i += character.bytes;
  }
  return std::nullopt;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxShown = 60;
  std::string out = "'";
  size_t i = 0;
  while (i < text.size() && i < kMaxShown) {
    const Character character = first_character(text.substr(i));
    if (character.bytes == 0 || is_control(character.value)) {
      char hex[5];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(text[i]));
      out += hex;
      ++i;
    } else {
      out += text.substr(i, character.bytes);
      i += character.bytes;
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
