// The reducer of a compressed bucket: walks a segment's blocks through their codecs, keeps the residuals and,
// at a commit, moves norms and controllers on.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "compress/accumulate.h"
#include "compress/bucket_plan.h"
#include "compress/carried.h"
#include "compress/codecs/random_bits.h"
#include "compress/raw_kernels.h"
#include "compress/sampled.h"

namespace gradwire::compress {
namespace {

// Pieces smaller than this go by their layer's norm: a few hundred elements say too little.
constexpr uint64_t kOwnNormFrom = 2048;

// Weight of an operation's squares in the running mean that later thresholds go by. The last operation's norm
// alone makes rings of three and more nodes swing with period two: a dense step fills the sums of the next
// nodes, their norms rise, and the step after is sparse (Gaussian gradients, 4 nodes at 1%: 2.6% and 0.35% in
// turns, half as many bytes again as the target; with an eighth about 1%, and 1.07% at 16 nodes).
constexpr double kNormWeight = 0.125;

std::string_view common_codec(std::span<const CodecSettings> settings) {
  if (settings.empty()) {
    return "none";
  }
  for (const CodecSettings& s : settings) {
    if (s.codec != settings.front().codec) {
      return "mixed";
    }
  }
  for (const std::string_view name : codec_names()) {
    if (name == settings.front().codec) {
      return name;
    }
  }
  return "mixed";
}

class Compressor final : public BucketReducer {
 public:
  Compressor(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements)
      : plan_(make_plan(shape, settings, elements)),
        name_(common_codec(settings)),
        carried_(plan_),
        next_(plan_.has_residual ? elements : 0),
        sampled_(plan_),
        records_(plan_.blocks.size()),
        aimed_(plan_.layers.size()) {
    for (size_t i = 0; i < plan_.blocks.size(); ++i) {
      records_[i].sent = plan_.blocks[i].elements;
    }
    stats_.warm_stage = warm_stage();
    stats_.residual_bytes = plan_.has_residual ? 2 * elements * sizeof(float) : 0;
  }

  const Geometry& geometry() const override { return plan_.geometry; }
  Dtype dtype() const override { return Dtype::kFloat32; }
  std::string_view codec_name() const override { return name_; }
  uint64_t wire_variant() const override { return plan_.wire_variant; }
  CompressionStats stats() const override { return stats_; }
  std::span<const float> residual() const override { return carried_.residual.view(); }
  void abandon() override {}

  Status begin(const OperationSettings& settings) override;
  Result<HopOutcome> hop(const Segment& segment, std::span<const std::byte> arrived,
                         std::span<const void* const> locals, std::byte* out) override;
  Status decode(const Segment& segment, std::span<const std::byte> bytes, void* result) override;
  uint32_t finish(const Segment& segment, std::byte* bytes, uint32_t size) override;
  void commit() override;

  std::vector<LayerState> take_state() override {
    return compress::take_state(plan_, carried_, stats_.operations);
  }
  std::vector<LayerState> describe_state(size_t first, size_t count) const override {
    return compress::describe_state(plan_, carried_, stats_.operations, first, count);
  }
  size_t restore_state(std::span<const LayerState> state) override;

  void poison(void* result, uint64_t first, uint64_t count) const override {
    std::fill_n(static_cast<float*>(result) + first, count, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  Result<BlockOutcome> hop_raw(const Block& block, ByteReader* arrived, std::span<const void* const> locals,
                               std::byte* out);
  Result<BlockOutcome> hop_coded(uint32_t index, ByteReader* arrived, std::span<const void* const> locals,
                                 std::byte* out);
  Status decode_block(const Block& block, ByteReader& bytes, float* result);
  SparseRule rule_for(const Block& block) const;
  uint64_t committed(const SparseLayer& layer) const;
  uint32_t warm_stage() const;
  void settle_layer(uint32_t layer);
  void follow(double& mean, double squares) const;

  BucketPlan plan_;
  std::string_view name_;
  Carried carried_;
  FloatBuffer next_;
  SampledThresholds sampled_;

  std::vector<BlockRecord> records_;  // of the operation in progress, by block
  std::vector<double> aimed_;         // density by sparse layer in the operation in progress

  double scale_ = 1;
  float factor_ = 1;         // on the residual
  float inverse_ranks_ = 1;  // factor on the result
  CompressionStats stats_;
};

Status Compressor::begin(const OperationSettings& settings) {
  if (settings.op != ReduceOp::kSum && settings.op != ReduceOp::kAverage) {
    return {Code::kUnsupported,
            "a compressed bucket offers sum and average only; use an exact bucket for other operations"};
  }
  if (settings.ranks < 1) {
    return {Code::kInvalidArgument, "an operation needs at least 1 rank, not 0"};
  }
  if (!(settings.scale > 0) || !std::isfinite(settings.scale)) {
    return {Code::kInvalidArgument,
            "scale " + std::to_string(settings.scale) + " is not a positive finite number"};
  }
  scale_ = settings.scale;
  factor_ = carried_.scale > 0 ? static_cast<float>(scale_ / carried_.scale) : 1.0F;
  inverse_ranks_ = settings.op == ReduceOp::kAverage ? 1.0F / static_cast<float>(settings.ranks) : 1.0F;
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    aimed_[i] = settings.flush ? 1.0 : plan_.layers[i].control.density(committed(plan_.layers[i]));
  }
  return ok_status();
}

SparseRule Compressor::rule_for(const Block& block) const {
  const SparsePiece& piece = plan_.pieces[block.piece];
  const SparseLayer& layer = plan_.layers[piece.layer];
  const double density = aimed_[piece.layer];
  SparseRule rule;
  rule.dense = density >= 1;
  if (layer.selection == Selection::kTop) {
    rule.cap = static_cast<uint32_t>(std::ceil(density * block.elements));
    return rule;
  }
  rule.alpha = layer.control.alpha();
  rule.cap = layer.control.cap(block.elements, density);
  if (layer.selection == Selection::kSampled) {
    rule.threshold = sampled_.threshold(piece.layer, factor_);
    return rule;
  }
  if (!layer.control.current_norm()) {
    const bool own = piece.elements >= kOwnNormFrom;
    const double squares = own ? carried_.piece_squares[block.piece] : carried_.layer_squares[piece.layer];
    const double elements = static_cast<double>(own ? piece.elements : layer.elements);
    rule.mean_square = squares / elements * (static_cast<double>(factor_) * factor_);
  }
  return rule;
}

Result<BlockOutcome> Compressor::hop_raw(const Block& block, ByteReader* arrived,
                                         std::span<const void* const> locals, std::byte* out) {
  BlockOutcome outcome;
  outcome.bytes = size_t{block.elements} * sizeof(float);
  const std::byte* from = nullptr;
  if (arrived != nullptr && (from = arrived->take(outcome.bytes)) == nullptr) {
    return truncated("raw elements");
  }
  outcome.not_finite = raw::hop<ReduceOp::kSum, float>(from, locals, block.first, block.elements, out);
  return outcome;
}

Result<BlockOutcome> Compressor::hop_coded(uint32_t index, ByteReader* arrived,
                                           std::span<const void* const> locals, std::byte* out) {
  const Block& block = plan_.blocks[index];
  BlockRecord& record = records_[index];
  SparseRule rule;
  BlockInput input;
  input.arrived = arrived;
  input.locals = locals;
  input.first = block.first;
  input.elements = block.elements;
  input.next = next_.data() + block.first;
  input.residual = carried_.residual.data() + block.first;
  input.stream = scramble(stats_.operations * plan_.blocks.size() + index);
  if (factor_ != 1.0F) {
    multiply(input.residual, factor_, input.next, block.elements);
    input.residual = input.next;
  }
  if (block.piece != kNoPiece) {
    rule = rule_for(block);
    input.rule = &rule;
    input.samples = sampled_.of_block(plan_, index);
  }
  Result<BlockOutcome> done = plan_.codecs[block.codec]->hop(input, out, record);
  if (done.ok() && !block.keeps) {
    std::fill_n(input.next, block.elements, 0.0F);
    record.residual_sum = 0;
  }
  return done;
}

Result<HopOutcome> Compressor::hop(const Segment& segment, std::span<const std::byte> arrived,
                                   std::span<const void* const> locals, std::byte* out) {
  ByteReader reader(arrived);
  ByteReader* const source = arrived.empty() ? nullptr : &reader;
  HopOutcome outcome;
  for (uint32_t i = segment.first_block; i < segment.first_block + segment.blocks; ++i) {
    const Block& block = plan_.blocks[i];
    const Result<BlockOutcome> done = block.codec == 0 ? hop_raw(block, source, locals, out + outcome.bytes)
                                                       : hop_coded(i, source, locals, out + outcome.bytes);
    if (!done.ok()) {
      return done.status();
    }
    records_[i].bytes = static_cast<uint32_t>(done->bytes);
    outcome.bytes += static_cast<uint32_t>(done->bytes);
    outcome.not_finite |= done->not_finite;
  }
  if (reader.left() != 0) {
    return Status(Code::kCorrupt, "a segment came with " + std::to_string(reader.left()) +
                                      " bytes behind its last block; its sender disagrees on the layers");
  }
  return outcome;
}

Status Compressor::decode_block(const Block& block, ByteReader& bytes, float* result) {
  if (block.codec == 0) {
    const std::byte* const from = bytes.take(size_t{block.elements} * sizeof(float));
    if (from == nullptr) {
      return truncated("raw elements");
    }
    raw::scale_bytes(from, inverse_ranks_, result, block.elements);
    return ok_status();
  }
  return plan_.codecs[block.codec]->decode(bytes, block.elements, inverse_ranks_, result);
}

uint32_t Compressor::finish(const Segment& segment, std::byte* bytes, uint32_t size) {
  if (!plan_.tallies) {
    return size;
  }
  size_t from = 0;
  size_t to = 0;
  for (uint32_t i = segment.first_block; i < segment.first_block + segment.blocks; ++i) {
    const Block& block = plan_.blocks[i];
    const size_t length = records_[i].bytes;
    std::memmove(bytes + to, bytes + from, length);
    to += block.codec == 0 ? length : plan_.codecs[block.codec]->finish(bytes + to, length, block.elements);
    from += length;
  }
  return static_cast<uint32_t>(to);
}

Status Compressor::decode(const Segment& segment, std::span<const std::byte> bytes, void* result) {
  ByteReader reader(bytes);
  for (uint32_t i = segment.first_block; i < segment.first_block + segment.blocks; ++i) {
    const Block& block = plan_.blocks[i];
    GRADWIRE_RETURN_IF_ERROR(decode_block(block, reader, static_cast<float*>(result) + block.first));
  }
  if (reader.left() != 0) {
    return {Code::kCorrupt, "a segment came with " + std::to_string(reader.left()) +
                                " bytes behind its last block; its sender disagrees on the layers"};
  }
  return ok_status();
}

void Compressor::follow(double& mean, double squares) const {
  const double before = mean * (static_cast<double>(factor_) * factor_);
  mean = before > 0 ? before + kNormWeight * (squares - before) : squares;
}

// Sums go block by block, piece by piece: the same in every run.
void Compressor::settle_layer(uint32_t index) {
  SparseLayer& layer = plan_.layers[index];
  double squares = 0;
  uint64_t sent = 0;
  for (uint32_t p = layer.first_piece; p < layer.first_piece + layer.pieces; ++p) {
    const SparsePiece& piece = plan_.pieces[p];
    double piece_sum = 0;
    for (uint32_t b = piece.first_block; b < piece.first_block + piece.blocks; ++b) {
      piece_sum += records_[b].square_sum;
      sent += records_[b].sent;
    }
    follow(carried_.piece_squares[p], piece_sum);
    squares += piece_sum;
  }
  follow(carried_.layer_squares[index], squares);
  // A dense operation says nothing about alpha, nor does one in which there was nothing to send.
  if (layer.selection == Selection::kRms && aimed_[index] < 1 && squares > 0) {
    layer.control.adjust(static_cast<double>(sent) / static_cast<double>(layer.elements), aimed_[index]);
  }
}

void Compressor::commit() {
  for (uint32_t i = 0; i < plan_.layers.size(); ++i) {
    settle_layer(i);
  }
  double residual_sum = 0;
  uint64_t sent = 0;
  for (const BlockRecord& record : records_) {
    residual_sum += record.residual_sum;
    sent += record.sent;
  }
  std::swap(carried_.residual, next_);
  carried_.scale = scale_;
  stats_.operations += 1;
  sampled_.settle([this](uint32_t layer) {
    return std::min(1.0, plan_.layers[layer].control.density(committed(plan_.layers[layer])));
  });
  stats_.density =
      plan_.elements == 0 ? 1.0 : static_cast<double>(sent) / static_cast<double>(plan_.elements);
  stats_.residual_norm = std::sqrt(residual_sum);
  stats_.warm_stage = warm_stage();
}

size_t Compressor::restore_state(std::span<const LayerState> state) {
  if (stats_.operations > 0 || carried_.scale > 0) {
    return 0;
  }
  const size_t restored = compress::restore_state(state, plan_, carried_);
  const auto residual = carried_.residual.view();
  stats_.residual_norm = std::sqrt(square_sum(residual.data(), residual.size()));
  stats_.warm_stage = warm_stage();
  return restored;
}

uint64_t Compressor::committed(const SparseLayer& layer) const {
  return plan_.residual_layers[layer.residual_layer].earlier + stats_.operations;
}

uint32_t Compressor::warm_stage() const {
  uint32_t least = 255;
  for (const SparseLayer& layer : plan_.layers) {
    least = std::min(least, layer.control.stage(committed(layer)));
  }
  return least;
}

}  // namespace

Result<std::unique_ptr<BucketReducer>> make_compressor(const BucketShape& shape,
                                                       std::span<const CodecSettings> settings) {
  const Result<uint64_t> elements = checked_elements(shape);
  if (!elements.ok()) {
    return elements.status();
  }
  GRADWIRE_RETURN_IF_ERROR(check_settings(shape, settings));
  try {
    return std::unique_ptr<BucketReducer>(std::make_unique<Compressor>(shape, settings, *elements));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "no memory for the residuals of a bucket of " +
                                                std::to_string(*elements) + " elements; use a smaller one");
  }
}

}  // namespace gradwire::compress
