// Small functions over text that several parts of config share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::config {

// Where a text stops being UTF-8, or holds a control character other than tab, line feed and carriage return
// (which `allow_layout` permits): the byte's offset.
std::optional<size_t> find_bad_byte(std::string_view text, bool allow_layout);

// `text` in single quotes, shortened to 60 bytes, with everything that is not printable UTF-8 as \xNN.
std::string in_quotes(std::string_view text);

// The candidate nearest to `word` (insertions, deletions, replacements, swaps of neighbours), if near enough
// to be a slip: at most a third of the word's length, at least 1.
std::optional<std::string_view> nearest(std::string_view word,
                                        const std::vector<std::string_view>& candidates);

// "a, b or c".
std::string list_words(const std::vector<std::string_view>& words);

}  // namespace gradwire::config
