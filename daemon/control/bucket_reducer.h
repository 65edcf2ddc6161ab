// From a bucket's manifest and the coordinator's policy to what reduces it; the same on every node.
#pragma once

#include <memory>
#include <span>

#include "compress/reducer.h"
#include "config/policy.h"
#include "daemon/control/manifest.h"

namespace gradwire::control {

Result<std::unique_ptr<compress::BucketReducer>> make_reducer(const Manifest& manifest, uint32_t nodes,
                                                              uint32_t max_payload,
                                                              const config::CompressionPolicy& policy,
                                                              uint32_t node);

// For allgather and reduce_scatter (BucketSpec::shards). nullptr: the ranks do not divide the elements.
Result<std::unique_ptr<compress::BucketReducer>> make_shards(const Manifest& manifest, uint32_t nodes,
                                                             uint32_t max_payload,
                                                             std::span<const uint32_t> rank_node);

// Memory that make_reducer's result will hold: residuals, momentum and what its codecs work in.
uint64_t residual_bytes(const Manifest& manifest, const config::CompressionPolicy& policy);

// Whether it can have residuals at all.
bool is_compressible(const Manifest& manifest);

}  // namespace gradwire::control
