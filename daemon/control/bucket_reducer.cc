#include "daemon/control/bucket_reducer.h"

#include <vector>

namespace gradwire::control {
namespace {

compress::CodecSettings codec_settings(const config::PolicySettings& policy) {
  compress::CodecSettings settings;
  settings.codec = policy.codec;
  settings.density = policy.density;
  settings.edge_density_factor = policy.edge_density_factor;
  settings.dense_below = policy.dense_below;
  settings.density_cap = policy.density_cap;
  settings.warm_start_steps = policy.warm_start_steps;
  settings.norm = policy.norm == "current" ? compress::NormChoice::kCurrent : compress::NormChoice::kPrevious;
  return settings;
}

}  // namespace

Result<std::unique_ptr<compress::BucketReducer>> make_reducer(const Manifest& manifest, uint32_t nodes,
                                                              uint32_t max_payload,
                                                              const config::CompressionPolicy& policy) {
  compress::BucketShape shape;
  shape.nodes = nodes;
  shape.max_message_bytes = max_payload;
  std::vector<compress::CodecSettings> settings;
  for (const auto& [name, elements] : manifest.layers) {
    shape.layers.push_back({name, elements});
    settings.push_back(codec_settings(config::resolve_policy(policy, name)));
  }
  const auto dtype = static_cast<compress::Dtype>(manifest.dtype);
  if ((manifest.flags & kBucketGradient) != 0 && dtype == compress::Dtype::kFloat32) {
    return compress::make_compressor(shape, settings);
  }
  return compress::make_exact_reducer(shape, dtype);
}

}  // namespace gradwire::control
