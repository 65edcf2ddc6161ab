// What allgather and reduce_scatter need of a bucket that is cut by shards: rank r's shard is elements
// [r*n, (r+1)*n) with n = elements / world; chunk (n + 1) mod P holds the shards of node n's ranks.
#pragma once

#include <cstddef>

#include "config/base/result.h"
#include "daemon/engine/state.h"

namespace gradwire::engine {

// kInvalidArgument: the shards' reducer is not cut as above, or its messages do not fit into `max_payload`.
Status check_shards(const Job& job, const BucketSpec& spec, size_t max_payload);

// Where the elements of a segment of this node's own chunk lie: in the gradient region of the rank that the
// shard belongs to. nullptr for a segment without elements.
const std::byte* shard_source(const Bucket& bucket, const compress::Segment& segment);

// Fills the shards of this node's ranks with NaN (floating-point types), nothing else of the result.
void poison_shards(const Bucket& bucket);

}  // namespace gradwire::engine
