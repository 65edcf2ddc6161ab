#include "daemon/engine/shards.h"

#include <string>

namespace gradwire::engine {

namespace {

using compress::Segment;

// Whether the segments of a chunk lie in shards of its node's ranks, in order; adds up their elements.
bool chunk_fits(const JobSpec& job, const BucketSpec& spec, uint32_t chunk, uint64_t* elements) {
  const uint64_t shard = spec.elements / job.rank_node.size();
  const uint32_t owner = (chunk + job.nodes - 1) % job.nodes;
  uint64_t end = 0;
  for (const Segment& segment : spec.shards->geometry().segments(chunk)) {
    if (segment.elements == 0) {
      continue;
    }
    if (segment.first_element < end || segment.first_element >= spec.elements ||
        segment.elements > spec.elements - segment.first_element) {
      return false;
    }
    end = segment.first_element + segment.elements;
    const uint64_t rank = segment.first_element / shard;
    if (rank != (end - 1) / shard || job.rank_node[rank] != owner) {
      return false;
    }
    *elements += segment.elements;
  }
  return true;
}

}  // namespace

Status check_shards(const Job& job, const BucketSpec& spec, size_t max_payload) {
  const auto refusal = [&spec](const std::string& why) {
    return Status(Code::kInvalidArgument, bucket_label(spec.name, spec.bucket) + ", shards: " + why);
  };
  const size_t world = job.spec.rank_node.size();
  if (spec.elements % world != 0) {
    return refusal("a world of " + std::to_string(world) + " does not divide " +
                   std::to_string(spec.elements) + " elements");
  }
  const compress::Geometry& geometry = spec.shards->geometry();
  if (geometry.chunks() != job.spec.nodes || spec.shards->dtype() != spec.reducer->dtype()) {
    return refusal("they are not cut for the ring's " + std::to_string(job.spec.nodes) +
                   " nodes, or hold another type than the bucket");
  }
  const uint64_t width = compress::dtype_size(spec.shards->dtype());
  uint64_t elements = 0;
  for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
    if (geometry.segments(chunk).empty()) {
      return refusal("chunk " + std::to_string(chunk) + " has no segment");
    }
    for (const Segment& segment : geometry.segments(chunk)) {
      if (segment.max_bytes > max_payload || segment.elements > max_payload / width) {
        return refusal("a segment of " + std::to_string(segment.elements) + " elements and " +
                       std::to_string(segment.max_bytes) + " bytes exceeds the transport's " +
                       std::to_string(max_payload));
      }
    }
    if (!chunk_fits(job.spec, spec, chunk, &elements)) {
      return refusal("chunk " + std::to_string(chunk) + " holds more than the shards of node " +
                     std::to_string((chunk + job.spec.nodes - 1) % job.spec.nodes));
    }
  }
  if (elements != spec.elements) {
    return refusal(std::to_string(elements) + " of " + std::to_string(spec.elements) +
                   " elements are in segments");
  }
  return ok_status();
}

const std::byte* shard_source(const Bucket& bucket, const Segment& segment) {
  if (segment.elements == 0) {
    return nullptr;
  }
  const Job& job = *bucket.job;
  const uint64_t rank = segment.first_element / (bucket.spec.elements / job.spec.rank_node.size());
  for (size_t i = 0; i < job.ranks.size(); ++i) {
    if (job.ranks[i].spec.rank == rank) {
      return static_cast<const std::byte*>(bucket.spec.gradients[i]) +
             segment.first_element * bucket.dtype_bytes;
    }
  }
  return nullptr;  // check_shards has refused such a segment
}

void poison_shards(const Bucket& bucket) {
  const compress::BucketReducer& shards = *bucket.spec.shards;
  const uint32_t own = compress::own_chunk(bucket.job->spec.node_index, bucket.job->spec.nodes);
  for (const Segment& segment : shards.geometry().segments(own)) {
    shards.poison(bucket.spec.result, segment.first_element, segment.elements);
  }
}

}  // namespace gradwire::engine
