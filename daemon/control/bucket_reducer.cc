#include "daemon/control/bucket_reducer.h"

#include <algorithm>
#include <vector>

namespace gradwire::control {
compress::CodecSettings codec_settings(const config::PolicySettings& policy) {
  compress::CodecSettings settings;
  settings.codec = policy.codec;
  settings.density = policy.density;
  settings.edge_density_factor = policy.edge_density_factor;
  settings.dense_below = policy.dense_below;
  settings.density_cap = policy.density_cap;
  settings.warm_start_steps = policy.warm_start_steps;
  settings.norm = policy.norm == "current" ? compress::NormChoice::kCurrent : compress::NormChoice::kPrevious;
  settings.rounding =
      policy.rounding == "stochastic" ? compress::Rounding::kStochastic : compress::Rounding::kNearest;
  settings.steps_per_octave = policy.steps_per_octave == "16" ? 16 : 8;
  settings.error_feedback = policy.error_feedback != "off";
  settings.residuals =
      policy.residuals == "bf16" ? compress::ResidualType::kBfloat16 : compress::ResidualType::kFloat32;
  settings.scope = policy.threshold_scope == "bucket" ? compress::ThresholdScope::kBucket
                                                      : compress::ThresholdScope::kLayer;
  settings.norm_of = policy.norm_of == "gradient" ? compress::NormOf::kGradient : compress::NormOf::kSum;
  settings.sparse_rows = policy.sparse_rows == "on";
  settings.momentum = policy.momentum;
  settings.clip_norm = policy.clip_norm;
  settings.warm_start =
      policy.warm_start == "exponential" ? compress::WarmStart::kExponential : compress::WarmStart::kStages;
  return settings;
}

namespace {

std::vector<compress::CodecSettings> layer_settings(const Manifest& manifest,
                                                    const config::CompressionPolicy& policy) {
  std::vector<compress::CodecSettings> settings;
  settings.reserve(manifest.layers.size());
  for (const auto& [name, elements] : manifest.layers) {
    settings.push_back(codec_settings(config::resolve_policy(policy, name)));
  }
  return settings;
}

compress::BucketShape bucket_shape(const Manifest& manifest, const BucketPlace& place) {
  compress::BucketShape shape;
  shape.nodes = place.nodes;
  shape.node = place.node;
  shape.max_message_bytes = place.max_payload;
  shape.direct = place.algorithm == engine::Algorithm::kDirect;
  for (const auto& [name, elements] : manifest.layers) {
    shape.layers.push_back({name, elements});
  }
  return shape;
}

}  // namespace

bool is_compressible(const Manifest& manifest) {
  return (manifest.flags & kBucketGradient) != 0 &&
         static_cast<compress::Dtype>(manifest.dtype) == compress::Dtype::kFloat32;
}

bool is_exact(const config::CompressionPolicy& policy, const std::string& layer) {
  return config::resolve_policy(policy, layer).codec == "none";
}

bool has_residuals(const Manifest& manifest, const config::CompressionPolicy& policy) {
  const auto keeps = [&policy](const auto& layer) {
    const config::PolicySettings settings = config::resolve_policy(policy, layer.first);
    return layer.second > 0 && (settings.codec != "none" || settings.momentum > 0);
  };
  return is_compressible(manifest) && std::any_of(manifest.layers.begin(), manifest.layers.end(), keeps);
}

uint64_t owed_bytes(const Manifest& manifest, const config::CompressionPolicy& from,
                    const config::CompressionPolicy& to) {
  uint64_t elements = 0;
  for (const auto& [name, count] : manifest.layers) {
    elements += !is_exact(from, name) && is_exact(to, name) ? count : 0;
  }
  return is_compressible(manifest) ? elements * sizeof(float) : 0;
}

engine::Algorithm algorithm_for(const Manifest& manifest, const config::CompressionPolicy& policy,
                                engine::Algorithm wanted) {
  const bool can = is_compressible(manifest) && compress::may_be_direct(layer_settings(manifest, policy));
  return can ? wanted : engine::Algorithm::kRing;
}

Result<std::unique_ptr<compress::BucketReducer>> make_reducer(const Manifest& manifest,
                                                              const BucketPlace& place,
                                                              const config::CompressionPolicy& policy) {
  const compress::BucketShape shape = bucket_shape(manifest, place);
  if (!is_compressible(manifest)) {
    return compress::make_exact_reducer(shape, static_cast<compress::Dtype>(manifest.dtype));
  }
  return compress::make_compressor(shape, layer_settings(manifest, policy));
}

Result<std::unique_ptr<compress::BucketReducer>> make_shards(const Manifest& manifest, uint32_t nodes,
                                                             uint32_t max_payload,
                                                             std::span<const uint32_t> rank_node) {
  if (rank_node.empty() || manifest_elements(manifest) % rank_node.size() != 0) {
    return std::unique_ptr<compress::BucketReducer>();
  }
  std::vector<uint32_t> rank_chunk;
  for (const uint32_t node : rank_node) {
    rank_chunk.push_back(compress::own_chunk(node, nodes));
  }
  return compress::make_shard_reducer(bucket_shape(manifest, {nodes, 0, max_payload}),
                                      static_cast<compress::Dtype>(manifest.dtype), rank_chunk);
}

uint64_t residual_bytes(const Manifest& manifest, const BucketPlace& place,
                        const config::CompressionPolicy& policy) {
  if (!is_compressible(manifest)) {
    return 0;
  }
  return compress::held_bytes(bucket_shape(manifest, place), layer_settings(manifest, policy));
}

}  // namespace gradwire::control
