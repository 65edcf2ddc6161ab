// BucketReducer: everything that happens to the elements of one bucket on one node.
//
// The engine moves segments around the ring and knows nothing of codecs; a reducer turns memory into bytes
// and back and knows nothing of the network. One reducer belongs to one bucket of one job epoch on one node.
// It is not thread-safe: one thread at a time. It allocates in its constructor only; no I/O, no clock.
//
// An operation is begin() ... any number of collect()/hop()/decode() ... commit() or abandon(). hop() must be
// called exactly once for every segment of the bucket in an operation (each node encodes each of its element
// slots once a step, whatever the number of nodes is).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/base/result.h"

namespace gradwire::compress {

// Values are those of GW_FLOAT32... in gradwire.h, and travel in messages and shared memory: never renumber.
enum class Dtype : uint8_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBfloat16 = 2,
  kFloat64 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6
};
enum class ReduceOp : uint8_t { kSum = 0, kAverage = 1, kMin = 2, kMax = 3, kProduct = 4 };

size_t dtype_size(Dtype dtype);

struct Layer {
  std::string name;
  uint64_t elements = 0;
};

// By which norm a layer's threshold goes: a running mean over the operations before, or that of the block at
// hand.
enum class NormChoice : uint8_t { kPrevious, kCurrent };
// Whose norm it is: of the sum that is sent from (gradient, residual and what arrived), by piece; or of the
// fresh gradient, by layer, with a factor that grows along the ring.
enum class NormOf : uint8_t { kSum, kGradient };
// Of the codecs that offer the choice. Stochastic rounding has no bias, but twice the mean square of the
// error.
enum class Rounding : uint8_t { kNearest, kStochastic };
// In what a layer's residual lies between operations. bf16 takes half the memory, and is rounded to by
// chance.
enum class ResidualType : uint8_t { kFloat32, kBfloat16 };
// How the density of a sparse layer comes down from dense to its target: 25%, 6.25%, ... in stages; or, after
// a fifth of its operations, from 25% by the same factor in each.
enum class WarmStart : uint8_t { kStages, kExponential };
// Which elements a sampled threshold is drawn from.
enum class ThresholdScope : uint8_t { kLayer, kBucket };

// What the policy says for one layer. Ranges are checked by make_compressor.
struct CodecSettings {
  std::string codec = "none";  // a name of codec_names()
  double density = 0.01;       // target share of elements sent; (0, 1]
  double edge_density_factor =
      4.0;                      // first and last large layer of a bucket's job: factor on density; [1, 100]
  uint64_t dense_below = 2048;  // layers smaller than this go dense
  double density_cap = 4.0;     // a block's density is at most cap * target; [1, 1000]
  // Committed operations per stage, or of all of an exponential one; 0 switches the warm start off.
  uint32_t warm_start_steps = 100;
  WarmStart warm_start = WarmStart::kStages;
  NormChoice norm = NormChoice::kPrevious;
  Rounding rounding = Rounding::kNearest;
  uint32_t steps_per_octave = 8;  // of l8: 8 or 16
  bool error_feedback = true;     // false: what a step does not send is lost
  ResidualType residuals = ResidualType::kFloat32;
  ThresholdScope scope = ThresholdScope::kLayer;  // of dropping
  NormOf norm_of = NormOf::kSum;
  // The norm is over elements that are not zero, in this step: for embeddings, most of whose rows have no
  // gradient.
  bool sparse_rows = false;
  // [0, 1). Momentum correction (Deep Gradient Compression): what is sent from gathers u = momentum * u +
  // gradient instead of the gradient, and u is zeroed where a sparse block sends. The optimiser's own
  // momentum is off.
  double momentum = 0;
  // [0, 1e9]; 0: off. Local clipping: no block of a node's fresh gradient, before momentum, adds more to the
  // result than clip_norm * sqrt(elements of the block / elements of the layer / nodes) in L2, so no layer
  // more than clip_norm / sqrt(nodes). In units of the unscaled result.
  double clip_norm = 0;
};

// A run of whole blocks of one chunk: what one message carries.
struct Segment {
  uint32_t chunk = 0;
  uint32_t index = 0;          // within its chunk, from 0
  uint64_t first_element = 0;  // within the bucket
  uint64_t elements = 0;       // 0 for the one segment of an empty chunk
  uint32_t max_bytes = 0;      // upper bound of its encoded size
  uint32_t first_block = 0;    // into the reducer's own table of blocks
  uint32_t blocks = 0;
};

// How a bucket is cut for a ring of `chunks()` nodes. Every chunk has at least one segment, so that a ring of
// an empty bucket still carries headers (a barrier).
class Geometry {
 public:
  Geometry() = default;
  explicit Geometry(std::vector<std::vector<Segment>> chunks) : chunks_(std::move(chunks)) {}
  uint32_t chunks() const { return static_cast<uint32_t>(chunks_.size()); }
  std::span<const Segment> segments(uint32_t chunk) const { return chunks_[chunk]; }

 private:
  std::vector<std::vector<Segment>> chunks_;
};

// The chunk whose sum `node` finishes.
constexpr uint32_t own_chunk(uint32_t node, uint32_t nodes) {
  return (node + 1) % nodes;
}

struct OperationSettings {
  double scale = 1.0;  // loss scaling of this step's gradients; residuals follow it (factor new/old)
  ReduceOp op = ReduceOp::kAverage;
  uint32_t ranks = 1;  // the average's divisor
  // Every layer goes densely, so that no more than a dense codec's error stays in the residuals.
  bool flush = false;
};

struct HopOutcome {
  uint32_t bytes = 0;       // written to `out`
  bool not_finite = false;  // the sum of this node held Inf or NaN
};

// What `status` shows of a bucket's compression, as of the last commit.
struct CompressionStats {
  uint64_t operations = 0;      // committed
  double density = 1.0;         // share of elements sent in the last committed operation
  double residual_norm = 0.0;   // L2, all layers; 0 for codecs without residual
  uint64_t residual_bytes = 0;  // memory held
  uint32_t warm_stage = 0;      // 0 dense; counts up; 255 when the target is reached
};

// A value for every element of a layer: a run of a vector that the layers of a bucket share.
struct LayerValues {
  bool kept = false;  // the layer has them
  std::shared_ptr<const std::vector<float>> memory;
  uint64_t first = 0;  // the layer's first element in it
};

// A layer's error feedback, apart from any bucket: buckets are rebuilt, rings change their size. What is kept
// of the controller is per element, so that it fits pieces of other sizes.
struct LayerState {
  std::string name;
  uint64_t elements = 0;
  LayerValues residual{.kept = true, .memory = {}};  // not of layers that are sent exactly
  LayerValues velocity;                              // of momentum correction
  double scale = 1.0;                                // the loss scale that both are in
  double alpha = 0.0;                                // sparsity controller; 0: it has none
  double dispersion = 0.0;   // mean|x| / rms(x) over dense operations, at most 1; 0: unknown
  double aimed = 0.0;        // the density that alpha is for, below 1; 0: not adjusted yet
  double mean_square = 0.0;  // running mean of S^2 an element; 0: none yet
  uint64_t operations = 0;   // committed: where the warm start and random draws are
  float threshold = 0;       // from a sample, for the next operation, at `scale`; 0: none
  // The controller's norms as they are; they go on exactly where a layer is cut into the same pieces.
  struct Piece {
    uint64_t elements = 0;
    double squares = 0.0;  // running mean of the piece's sum of squares
  };
  double squares = 0.0;       // the same of the layer
  std::vector<Piece> pieces;  // in order; empty where there is no controller
};

class BucketReducer {
 public:
  virtual ~BucketReducer() = default;

  virtual const Geometry& geometry() const = 0;
  virtual Dtype dtype() const = 0;
  // "none", "l8", ... or "mixed" where layers differ.
  virtual std::string_view codec_name() const = 0;

  // Differs where two reducers of equal geometry and name write other bytes.
  virtual uint64_t wire_variant() const { return 0; }

  // Starts an operation. Refuses what this bucket cannot do (average of integers, min of a compressed
  // bucket).
  virtual Status begin(const OperationSettings& settings) = 0;

  // Sums what arrived (encoded, unaligned, empty at the first hop), the residual and the local ranks'
  // gradients in that order, each element of a gradient read exactly once; writes the encoded sum to `out`,
  // which has segment.max_bytes. `locals[i]` is the start of local rank i's whole bucket. Arrived bytes are
  // validated: kCorrupt leaves the operation to be abandoned. No bytes mean the first hop, so the caller must
  // refuse an empty message that is not: a segment with elements is never encoded as nothing.
  virtual Result<HopOutcome> hop(const Segment& segment, std::span<const std::byte> arrived,
                                 std::span<const void* const> locals, std::byte* out) = 0;

  // Where nodes send their shares straight to the owner of a chunk (BucketShape::direct), and there are more
  // than two of them: adds another node's share of a segment of this node's own chunk, (node + 1) mod nodes,
  // to what hop() of that segment takes in. All shares but one come this way, before that hop() and in an
  // order that is the same in every run; the last one is the hop's `arrived`. kCorrupt as hop();
  // kUnsupported: this reducer does not collect, or not this segment.
  virtual Status collect(const Segment& segment, std::span<const std::byte> share) {
    (void)share;
    return {Code::kUnsupported, "this bucket collects no shares of chunk " + std::to_string(segment.chunk)};
  }
  virtual bool collects() const { return false; }

  // Decodes the finished sum of a segment into its place in `result` (start of the whole bucket), divided for
  // an average. Each block's bytes are validated before it is written: kCorrupt names what was wrong, and may
  // leave earlier blocks of the segment in `result`.
  virtual Status decode(const Segment& segment, std::span<const std::byte> bytes, void* result) = 0;

  // Turns the owner's finished sum of a segment (what the last hop() wrote) into what travels to everybody
  // and decode() reads; in place, never longer. Returns its size. Sums of 16-bit floats travel as fp32 and
  // are divided and rounded here, once.
  virtual uint32_t finish(const Segment& segment, std::byte* bytes, uint32_t size) {
    (void)segment;
    (void)bytes;
    return size;
  }

  // Fills `count` elements from `first` on of the result with NaN: the verdict "not finite". Does nothing for
  // integers, which have neither.
  virtual void poison(void* result, uint64_t first, uint64_t count) const = 0;

  // The end of an operation: residuals and controllers move on, or stay as they were before begin().
  virtual void commit() = 0;
  virtual void abandon() = 0;

  virtual CompressionStats stats() const = 0;

  // The committed residual by element of the bucket, in sum units of the last committed scale; empty for
  // reducers without residual, and where a layer has it in bf16. Elements of exactly sent layers stay zero.
  // Valid until the next commit.
  virtual std::span<const float> residual() const { return {}; }

  // What would be lost with this reducer, by layer: taken at the end of its life, after which there is no
  // operation any more and nothing to take. Empty without residuals and momentum, or where nothing was
  // committed.
  virtual std::vector<LayerState> take_state() { return {}; }
  // The same without the values, of at most `count` layers from the `first` one on, between operations:
  // LayerValues::first counts in what copy_kept() gives. The reducer goes on.
  virtual std::vector<LayerState> describe_state(size_t first, size_t count) const {
    (void)first;
    (void)count;
    return {};
  }
  // The values that the layers of describe_state() have, one after the other, and how many floats they are.
  virtual uint64_t kept_floats() const { return 0; }
  virtual void copy_kept(uint64_t from, std::span<float> to) const {
    (void)from;
    (void)to;
  }
  // Before the first operation: layers of the same name and size go on from there. What has no place any
  // more, because a layer is sent exactly, goes along with the first operation that commits. Others are left
  // alone. Returns how many layers were found.
  virtual size_t restore_state(std::span<const LayerState> state) {
    (void)state;
    return 0;
  }
};

struct BucketShape {
  std::vector<Layer> layers;
  uint32_t nodes = 1;              // chunks of the ring
  uint32_t max_message_bytes = 0;  // a segment's max_bytes stays at or below this; at least 70,000
  uint32_t node = 0;               // this node's place in the ring, below `nodes`
  // Shares go straight to the owner of their chunk, who collects them; the segments are those of a ring.
  // Compressors only, and not for codecs that count votes.
  bool direct = false;
};

// Exact reduction of any dtype (codec none). Elements of the message are the dtype's bytes, little-endian.
Result<std::unique_ptr<BucketReducer>> make_exact_reducer(const BucketShape& shape, Dtype dtype);

// The same, cut by shards: rank r of rank_chunk.size() has elements [r*n, (r+1)*n) of the bucket, and they
// belong to chunk rank_chunk[r] (in whole segments, none of which crosses a shard; a chunk may be empty, and
// has one empty segment then). kInvalidArgument: the ranks do not divide the elements.
Result<std::unique_ptr<BucketReducer>> make_shard_reducer(const BucketShape& shape, Dtype dtype,
                                                          std::span<const uint32_t> rank_chunk);

// Compressed reduction of fp32 gradients; settings[i] belongs to shape.layers[i]. If every layer says none
// this still works (without residuals). Layers' edge roles (first and last large layer) are found by the
// caller's order within the bucket.
Result<std::unique_ptr<BucketReducer>> make_compressor(const BucketShape& shape,
                                                       std::span<const CodecSettings> settings);

// Memory, in bytes, that make_compressor's result holds and that grows with the bucket: residuals, momentum,
// samples, the codecs' scratch, collected shares. A codec that does not exist holds none.
uint64_t held_bytes(const BucketShape& shape, std::span<const CodecSettings> settings);

// Whether BucketShape::direct may be set for layers with these settings.
bool may_be_direct(std::span<const CodecSettings> settings);

// The names that CodecSettings::codec may have, for error messages and --help.
std::span<const std::string_view> codec_names();

// What a layer of so many elements is sent by: `codec`, one of codec_names(), or the one that it has for
// layers under dense_below.
std::string_view codec_of_layer(std::string_view codec, uint64_t dense_below, uint64_t elements);

}  // namespace gradwire::compress
