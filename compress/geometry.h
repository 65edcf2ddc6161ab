// Cutting a bucket into chunks and segments; see docs/wire-format.md, "Geometry".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/reducer.h"

namespace gradwire::compress {

inline constexpr uint64_t kChunkAlignment = 64;    // elements
inline constexpr uint64_t kRawBlock = 256;         // elements, any dtype
inline constexpr uint64_t kL8Block = 4096;         // elements
inline constexpr uint64_t kSparseL8Block = 65536;  // elements
inline constexpr uint64_t kSparseRawBlock = 8192;  // elements; dense fp32 of a larger one would not fit
inline constexpr uint32_t kMinMessageBytes = 70000;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 40;
inline constexpr uint32_t kMaxNodes = 65536;

// First element of a chunk; chunk == chunks gives the end of the bucket.
uint64_t chunk_begin(uint64_t elements, uint32_t chunks, uint32_t chunk);

// Refuses shapes beyond the limits above; otherwise the number of elements of the bucket.
Result<uint64_t> checked_elements(const BucketShape& shape);

// Collects blocks into segments in element order. `blocks` counts entries of the caller's own table.
class SegmentBuilder {
 public:
  explicit SegmentBuilder(uint32_t max_bytes) : max_bytes_(max_bytes) {}

  // Closes what was open; the next block starts at `first_element`.
  void start_chunk(uint64_t first_element);
  // The next block starts at `first_element`, in a segment of its own.
  void start_run(uint64_t first_element);
  // Adds one block to the open segment, or to a fresh one where its worst case does not fit.
  void add_block(uint64_t elements, uint64_t max_bytes);
  // Adds a run of raw elements, cut at multiples of kRawBlock from its start; returns how many elements went
  // into the one table entry that this call made. Call again with the rest.
  uint64_t add_raw(uint64_t elements, uint64_t element_bytes);
  Geometry finish();

 private:
  void open_fresh();

  uint64_t max_bytes_;
  std::vector<std::vector<Segment>> chunks_;
  uint64_t next_element_ = 0;
  uint32_t next_block_ = 0;
};

// Raw elements of `element_bytes` each on the wire, cut into the chunks of a ring.
Geometry cut_raw(uint64_t elements, uint64_t element_bytes, const BucketShape& shape);

// Whether every rank's shard is as large as the others and belongs to one of the ring's chunks.
Status check_shards(uint64_t elements, uint32_t chunks, std::span<const uint32_t> rank_chunk);

// The same, cut at the shards of make_shard_reducer(), which must have been checked.
Geometry cut_shards(uint64_t elements, uint64_t element_bytes, const BucketShape& shape,
                    std::span<const uint32_t> rank_chunk);

}  // namespace gradwire::compress
