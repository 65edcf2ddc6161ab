// What a rank says about a bucket, and how two ranks' sayings differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/wire/limits.h"
#include "daemon/control/fields.h"

namespace gradwire::control {

using wire::kMaxElements;
using wire::kMaxLayers;
inline constexpr size_t kMaxLayerName = wire::kMaxNameBytes;
inline constexpr size_t kMaxBucketName = wire::kMaxNameBytes;
inline constexpr size_t kMaxManifestBytes = wire::kMaxLayerNameBytes;
// As parse_document() counts: a layer is an array, a comma in it and one behind it.
static_assert(3 * kMaxLayers + 100 <= kMaxValues, "every bucket that is allowed must fit into a document");
inline constexpr uint32_t kBucketGradient = 1;  // GW_BUCKET_GRADIENT

struct Manifest {
  std::string name;
  uint8_t dtype = 0;
  uint32_t flags = 0;
  std::vector<std::pair<std::string, uint64_t>> layers;  // name, elements
  bool operator==(const Manifest&) const = default;
};

// Members name, dtype, flags, layers of a document. kInvalidArgument names what is wrong.
Result<Manifest> read_manifest(const Json& document);
void write_manifest(const Manifest& manifest, Json* document);

uint64_t manifest_elements(const Manifest& manifest);

// "bucket 'NAME'" for sentences, where a long name must leave room for the rest.
std::string bucket_text(std::string_view name);

// One sentence on the first difference, with both values; `a_place` is like "rank 0 (node a)". The two
// differ and have one name.
std::string describe_difference(const Manifest& a, const std::string& a_place, const Manifest& b,
                                const std::string& b_place);

}  // namespace gradwire::control
