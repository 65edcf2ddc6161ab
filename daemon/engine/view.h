// Where an operation is, as seen from this node.
#pragma once

#include "daemon/engine/core.h"

namespace gradwire::engine {

// The operation that the bucket is about.
uint64_t sequence_of(const Bucket& bucket);
// Local ranks that have not submitted the operation.
uint32_t count_missing(const Bucket& bucket, uint64_t sequence);
// Without the list of missing ranks.
OperationView phase_of(const Core& core, const Bucket& bucket, uint64_t sequence);
OperationView view_of(const Core& core, const Bucket& bucket, uint64_t sequence);

}  // namespace gradwire::engine
