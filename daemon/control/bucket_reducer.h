// From a bucket's manifest and the coordinator's policy to what reduces it; the same on every node.
#pragma once

#include <memory>
#include <span>

#include "compress/reducer.h"
#include "config/policy.h"
#include "daemon/control/manifest.h"
#include "daemon/engine/engine.h"

namespace gradwire::control {

// Where a bucket's node is among the job's, and how their shares travel.
struct BucketPlace {
  uint32_t nodes = 1;
  uint32_t node = 0;
  uint32_t max_payload = 0;  // bytes of a message
  engine::Algorithm algorithm = engine::Algorithm::kRing;
};

// What a layer's settings are to its codec.
compress::CodecSettings codec_settings(const config::PolicySettings& policy);

// The algorithm that the bucket gets where `wanted` is asked for: kRing if it cannot be direct.
engine::Algorithm algorithm_for(const Manifest& manifest, const config::CompressionPolicy& policy,
                                engine::Algorithm wanted);

// `place.algorithm` is one of algorithm_for().
Result<std::unique_ptr<compress::BucketReducer>> make_reducer(const Manifest& manifest,
                                                              const BucketPlace& place,
                                                              const config::CompressionPolicy& policy);

// For allgather and reduce_scatter (BucketSpec::shards). nullptr: the ranks do not divide the elements.
Result<std::unique_ptr<compress::BucketReducer>> make_shards(const Manifest& manifest, uint32_t nodes,
                                                             uint32_t max_payload,
                                                             std::span<const uint32_t> rank_node);

// Memory that make_reducer's result will hold: residuals, momentum, what its codecs work in, and shares.
uint64_t residual_bytes(const Manifest& manifest, const BucketPlace& place,
                        const config::CompressionPolicy& policy);

// What a reducer with policy `to` may hold besides, for residuals of layers that had a codec before and have
// none now, until it has sent them.
uint64_t owed_bytes(const Manifest& manifest, const config::CompressionPolicy& from,
                    const config::CompressionPolicy& to);

// Whether the policy gives the layer no codec.
bool is_exact(const config::CompressionPolicy& policy, const std::string& layer);

// Whether a codec may be used for it, and whether one of its layers keeps residuals or momentum.
bool is_compressible(const Manifest& manifest);
bool has_residuals(const Manifest& manifest, const config::CompressionPolicy& policy);

}  // namespace gradwire::control
