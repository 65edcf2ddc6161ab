// From a bucket's manifest and the coordinator's policy to what reduces it; the same on every node.
#pragma once

#include <memory>

#include "compress/reducer.h"
#include "config/policy.h"
#include "daemon/control/manifest.h"

namespace gradwire::control {

Result<std::unique_ptr<compress::BucketReducer>> make_reducer(const Manifest& manifest, uint32_t nodes,
                                                              uint32_t max_payload,
                                                              const config::CompressionPolicy& policy);

}  // namespace gradwire::control
