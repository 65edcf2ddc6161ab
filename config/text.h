// Small functions over text that several parts of config share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::config {

// Where a text stops being UTF-8, or holds a control character (base/one_line.h) other than tab, line feed
// and carriage return: the byte's offset.
std::optional<size_t> find_bad_byte(std::string_view text);

// `text` in single quotes, shortened to 60 bytes, with everything that is not printable UTF-8 as \xNN.
std::string in_quotes(std::string_view text);

// "a, b or c".
std::string list_words(const std::vector<std::string_view>& words);

}  // namespace gradwire::config
