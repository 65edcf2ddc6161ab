// YAML from an untrusted file as a tree with positions. The one place that knows yaml-cpp.
//
// A document is one map, list or scalar. Refused: anchors and aliases, tags, keys that are not text, more
// than kMaxDepth levels or kMaxNodes nodes, a second document, bytes that are not UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/base/result.h"

namespace gradwire::config {

inline constexpr size_t kMaxFileBytes = 1 << 20;
inline constexpr size_t kMaxNodes = 65536;
inline constexpr size_t kMaxDepth = 8;

struct YamlNode {
  enum class Kind { kNull, kScalar, kMap, kList };
  Kind kind = Kind::kNull;
  int line = 1;  // from 1, as editors count
  int column = 1;
  std::string text;             // kScalar
  std::vector<YamlNode> keys;   // kMap: scalars, as written (duplicates included), parallel to items
  std::vector<YamlNode> items;  // kMap, kList
};

// The failure's message starts with "LINE:COLUMN: ". An empty text gives kNull.
Result<YamlNode> parse_yaml(std::string_view text);

}  // namespace gradwire::config
