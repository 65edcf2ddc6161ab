// The reducer of a compressed bucket: walks a segment's blocks through their codecs.
#include "compress/compressor.h"

#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "compress/accumulate.h"
#include "compress/codecs/random_bits.h"
#include "compress/raw_kernels.h"
#include "config/base/loss_scale.h"

namespace gradwire::compress {
namespace {

// Pieces smaller than this go by their layer's norm: a few hundred elements say too little.
constexpr uint64_t kOwnNormFrom = 2048;

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

}  // namespace

Compressor::Compressor(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements)
    : plan_(make_plan(shape, settings, elements)),
      name_(common_codec(settings)),
      carried_(plan_),
      next_(plan_),
      next_velocity_(plan_.has_momentum ? elements : 0),
      fresh_(plan_.largest_fresh),
      wide_(plan_.largest_half),
      collected_(plan_),
      records_(plan_.blocks.size()),
      aimed_(plan_.layers.size()),
      alphas_(plan_.layers.size()) {
  for (size_t i = 0; i < plan_.blocks.size(); ++i) {
    records_[i].sent = plan_.blocks[i].elements;
  }
  stats_.warm_stage = warm_stage();
  stats_.residual_bytes = memory();
}

Status Compressor::begin(const OperationSettings& settings) {
  if (settings.op != ReduceOp::kSum && settings.op != ReduceOp::kAverage) {
    return {Code::kUnsupported,
            "a compressed bucket offers sum and average only; use an exact bucket for other operations"};
  }
  if (settings.ranks < 1) {
    return {Code::kInvalidArgument, "an operation needs at least 1 rank, not 0"};
  }
  if (!is_loss_scale(settings.scale)) {
    return {Code::kInvalidArgument, "the scale " + not_a_loss_scale(settings.scale)};
  }
  collected_.clear();
  scale_ = settings.scale;
  flush_ = settings.flush;
  factor_ = carried_.scale > 0 ? static_cast<float>(scale_ / carried_.scale) : 1.0F;
  inverse_ranks_ = settings.op == ReduceOp::kAverage ? 1.0F / static_cast<float>(settings.ranks) : 1.0F;
  clip_scale_ = scale_ * (settings.op == ReduceOp::kAverage ? settings.ranks : 1);
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    SparseLayer& layer = plan_.layers[i];
    aimed_[i] = settings.flush ? 1.0 : layer.control.density(committed(layer));
    alphas_[i] = aimed_[i] < 1 && layer.selection == Selection::kRms ? layer.control.alpha_for(aimed_[i]) : 0;
  }
  return ok_status();
}

SparseRule Compressor::rule_for(const Block& block) const {
  const SparsePiece& piece = plan_.pieces[block.piece];
  const SparseLayer& layer = plan_.layers[piece.layer];
  const double density = aimed_[piece.layer];
  SparseRule rule;
  rule.dense = density >= 1;
  rule.measure = measures(piece.layer);
  if (layer.selection == Selection::kTop) {
    rule.cap = static_cast<uint32_t>(std::ceil(density * block.elements));
    return rule;
  }
  rule.alpha = alphas_[piece.layer];
  rule.touched = layer.sparse_rows;
  rule.cap = layer.control.cap(block.elements, density);
  if (layer.selection == Selection::kSampled) {
    rule.threshold = carried_.sampled.threshold(piece.layer, factor_);
    return rule;
  }
  if (!layer.control.current_norm() && !layer.sparse_rows) {
    const bool own = piece.elements >= kOwnNormFrom && layer.norm_of == NormOf::kSum;
    const double squares = own ? carried_.piece_squares[block.piece] : carried_.layer_squares[piece.layer];
    const double elements = static_cast<double>(own ? piece.elements : layer.elements);
    rule.mean_square = squares / elements * (static_cast<double>(factor_) * factor_);
    if (layer.norm_of == NormOf::kGradient) {
      rule.mean_square *= hop_factor_;
    }
  }
  return rule;
}

Result<BlockOutcome> Compressor::hop_raw(uint32_t index, const Sources& sources, std::byte* out) {
  const Block& block = plan_.blocks[index];
  BlockOutcome outcome;
  outcome.bytes = size_t{block.elements} * sizeof(float);
  const std::byte* from = nullptr;
  if (sources.arrived != nullptr && (from = sources.arrived->take(outcome.bytes)) == nullptr) {
    return truncated("raw elements");
  }
  if (sources.collected != nullptr) {
    if (from != nullptr) {
      add_bytes(from, sources.collected, sources.collected, block.elements);
    }
    from = reinterpret_cast<const std::byte*>(sources.collected);
  }
  const std::span<const void* const> locals = sources.locals;
  const void* gathered = gather(block, locals, records_[index]);
  if (owed_.any()) {
    gathered = with_owed(block, gathered, locals);
  }
  outcome.not_finite = gathered != nullptr
                           ? raw::hop<ReduceOp::kSum, float>(from, {&gathered, 1}, 0, block.elements, out)
                           : raw::hop<ReduceOp::kSum, float>(from, locals, block.first, block.elements, out);
  return outcome;
}

const float* Compressor::with_owed(const Block& block, const void* gathered,
                                   std::span<const void* const> locals) {
  float* const sum = owing_.data();
  owed_.fill(block.first, block.elements, scale_, sum);
  if (gathered != nullptr) {
    add(sum, static_cast<const float*>(gathered), sum, block.elements);
  } else {
    add_locals(locals, block.first, sum, block.elements);
  }
  return sum;
}

// A layer's norm is known only when all of it has been read, and what has been read cannot be read again: so
// each block is held to its share of the layer's bound, whatever the others are. Returns the sum of squares.
double Compressor::gather_clipped(const Block& block, std::span<const void* const> locals, float* fresh) {
  std::fill_n(fresh, block.elements, 0.0F);
  add_locals(locals, block.first, fresh, block.elements);
  const double squares = square_sum(fresh, block.elements);
  const double bound = block.clip * clip_scale_;
  // What is not finite stays so: the operation has no result then.
  if (!(squares > bound * bound) || !std::isfinite(squares)) {
    return squares;
  }
  multiply(fresh, static_cast<float>(bound / std::sqrt(squares)), fresh, block.elements);
  return square_sum(fresh, block.elements);
}

// What the sum takes from the local ranks, as one array of the block's elements: their gradients, clipped and
// with momentum where the layer has these. Null: the codec adds the gradients itself.
const void* Compressor::gather(const Block& block, std::span<const void* const> locals, BlockRecord& record) {
  const bool norm =
      block.piece != kNoPiece && plan_.layers[plan_.pieces[block.piece].layer].norm_of == NormOf::kGradient;
  if (block.momentum == 0 && block.clip == 0 && !norm) {
    return nullptr;
  }
  float* fresh = fresh_.data();
  double squares = 0;
  if (block.clip > 0) {
    squares = gather_clipped(block, locals, fresh);
  }
  if (block.momentum > 0) {
    float* const velocity = next_velocity_.data() + block.first;
    multiply(carried_.velocity.data() + block.first, block.momentum * factor_, velocity, block.elements);
    if (block.clip > 0) {
      add(velocity, fresh, velocity, block.elements);
    } else {
      add_locals(locals, block.first, velocity, block.elements);
    }
    fresh = velocity;
  } else if (block.clip == 0) {
    std::fill_n(fresh, block.elements, 0.0F);
    add_locals(locals, block.first, fresh, block.elements);
  }
  if (norm) {
    const bool known = block.clip > 0 && block.momentum == 0;
    record.fresh_squares = known ? squares : square_sum(fresh, block.elements);
  }
  return fresh;
}

Result<BlockOutcome> Compressor::hop_coded(uint32_t index, const Sources& sources, std::byte* out) {
  const Block& block = plan_.blocks[index];
  BlockRecord& record = records_[index];
  SparseRule rule;
  BlockInput input;
  input.arrived = sources.arrived;
  input.locals = sources.locals;
  input.first = block.first;
  input.elements = block.elements;
  if (block.half) {
    widen(std::span(carried_.residual.halves).subspan(block.at, block.elements), wide_.data());
    input.residual = wide_.data();
    input.next = wide_.data();
  } else {
    input.residual = carried_.residual.floats.data() + block.at;
    input.next = next_.floats.data() + block.at;
  }
  input.stream = scramble((earlier_ + stats_.operations) * plan_.blocks.size() + index);
  if (factor_ != 1.0F) {
    multiply(input.residual, factor_, input.next, block.elements);
    input.residual = input.next;
  }
  if (sources.collected != nullptr) {
    add(input.residual, sources.collected, input.next, block.elements);
    input.residual = input.next;
  }
  if (block.piece != kNoPiece) {
    rule = rule_for(block);
    input.rule = &rule;
    if (!flush_) {
      const SampledThresholds::Place place = carried_.sampled.of_block(plan_, index);
      input.samples = place.samples;
      input.sample_stride = place.stride;
    }
  }
  const void* const gathered = gather(block, sources.locals, record);
  if (gathered != nullptr) {
    input.locals = {&gathered, 1};
    input.first = 0;
    input.velocity = block.momentum > 0 ? next_velocity_.data() + block.first : nullptr;
  }
  Result<BlockOutcome> done = plan_.codecs[block.codec]->hop(input, out, record);
  if (done.ok() && !block.keeps) {
    std::fill_n(input.next, block.elements, 0.0F);
    record.residual_sum = 0;
  }
  if (done.ok() && block.half) {
    // Other bits on every node, so that their errors do not add up.
    const uint64_t key = scramble(input.stream + plan_.node + 1);
    narrow(std::span(wide_).first(block.elements), key, next_.halves.data() + block.at);
  }
  return done;
}

Result<HopOutcome> Compressor::hop(const Segment& segment, std::span<const std::byte> arrived,
                                   std::span<const void* const> locals, std::byte* out) {
  ByteReader reader(arrived);
  Sources sources;
  sources.arrived = arrived.empty() ? nullptr : &reader;
  sources.locals = locals;
  HopOutcome outcome;
  // A sparse sum fills in on its way: with a constant threshold its density would grow along the ring. What
  // goes straight to its owner is this node's own.
  const bool own = segment.chunk == own_chunk(plan_.node, plan_.nodes);
  const uint32_t hops = plan_.direct && !own ? 0 : (plan_.node + plan_.nodes - segment.chunk) % plan_.nodes;
  hop_factor_ = std::sqrt(static_cast<double>(hops) + 1);
  for (uint32_t i = segment.first_block; i < segment.first_block + segment.blocks; ++i) {
    const Block& block = plan_.blocks[i];
    sources.collected = collected_.from(segment, block.first);
    const Result<BlockOutcome> done = block.codec == 0 ? hop_raw(i, sources, out + outcome.bytes)
                                                       : hop_coded(i, sources, out + outcome.bytes);
    if (!done.ok()) {
      return done.status();
    }
    records_[i].bytes = static_cast<uint32_t>(done->bytes);
    outcome.bytes += static_cast<uint32_t>(done->bytes);
    outcome.not_finite |= done->not_finite;
  }
  GRADWIRE_RETURN_IF_ERROR(all_read(reader, "a segment"));
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
  return all_read(reader, "a segment");
}

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
