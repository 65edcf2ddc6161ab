// The word that somebody probably meant.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

namespace gradwire {

// Insertions, removals, replacements and swaps of neighbours.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// The candidate nearest to `word`, if near enough to be a slip: at most a third of the word's length, at
// least 1. `candidates`: a range of what a string_view can be made of; the answer points into it.
template <typename Range>
std::optional<std::string_view> nearest(std::string_view word, const Range& candidates) {
  constexpr size_t kLongest = 64;  // bounds the work for words from a hostile file
  if (word.size() > kLongest) {
    return std::nullopt;
  }
  size_t best = std::max<size_t>(1, word.size() / 3) + 1;
  std::optional<std::string_view> found;
  for (const std::string_view candidate : candidates) {
    if (const size_t distance = edit_distance(word, candidate); distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

}  // namespace gradwire
