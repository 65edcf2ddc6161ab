// The reducer of a compressed bucket. compressor.cc has what happens to a segment, compressor_commit.cc what
// happens at the end of an operation, compressor_state.cc what comes from other buckets and goes there.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "compress/bucket_plan.h"
#include "compress/carried.h"
#include "compress/collected.h"
#include "compress/reducer.h"

namespace gradwire::compress {

class Compressor final : public BucketReducer {
 public:
  Compressor(const BucketShape& shape, std::span<const CodecSettings> settings, uint64_t elements);

  const Geometry& geometry() const override { return plan_.geometry; }
  Dtype dtype() const override { return Dtype::kFloat32; }
  std::string_view codec_name() const override { return name_; }
  uint64_t wire_variant() const override { return plan_.wire_variant; }
  CompressionStats stats() const override { return stats_; }
  std::span<const float> residual() const override {
    return plan_.half_residuals > 0 ? std::span<const float>() : carried_.residual.floats.view();
  }
  void abandon() override {}

  Status begin(const OperationSettings& settings) override;
  Result<HopOutcome> hop(const Segment& segment, std::span<const std::byte> arrived,
                         std::span<const void* const> locals, std::byte* out) override;
  Status collect(const Segment& segment, std::span<const std::byte> share) override {
    return collected_.add(plan_, segment, share);
  }
  bool collects() const override { return collected_.collects(); }
  Status decode(const Segment& segment, std::span<const std::byte> bytes, void* result) override;
  uint32_t finish(const Segment& segment, std::byte* bytes, uint32_t size) override;
  void commit() override;

  // compressor_state.cc
  std::vector<LayerState> take_state() override;
  std::vector<LayerState> describe_state(size_t first, size_t count) const override;
  size_t restore_state(std::span<const LayerState> state) override;
  uint64_t kept_floats() const override;
  void copy_kept(uint64_t from, std::span<float> to) const override;

  void poison(void* result, uint64_t first, uint64_t count) const override {
    std::fill_n(static_cast<float*>(result) + first, count, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  // What a block's sum takes in besides the residual.
  struct Sources {
    ByteReader* arrived = nullptr;  // null: nothing
    float* collected = nullptr;     // of the block; null: nothing
    std::span<const void* const> locals;
  };
  uint64_t memory() const;  // bytes, of what grows with the bucket
  Result<BlockOutcome> hop_raw(uint32_t index, const Sources& sources, std::byte* out);
  Result<BlockOutcome> hop_coded(uint32_t index, const Sources& sources, std::byte* out);
  Status decode_block(const Block& block, ByteReader& bytes, float* result);
  const float* with_owed(const Block& block, const void* gathered, std::span<const void* const> locals);
  double gather_clipped(const Block& block, std::span<const void* const> locals, float* fresh);
  const void* gather(const Block& block, std::span<const void* const> locals, BlockRecord& record);
  SparseRule rule_for(const Block& block) const;
  uint64_t committed(const SparseLayer& layer) const;
  uint32_t warm_stage() const;
  bool measures(uint32_t layer) const;
  void settle_layer(uint32_t layer);
  void follow(double& mean, double squares) const;

  BucketPlan plan_;
  std::string_view name_;
  Carried carried_;
  Residuals next_;
  FloatBuffer next_velocity_;
  std::vector<float> fresh_;  // a block's gradient, where it is clipped or its norm is wanted
  std::vector<float> wide_;   // a block's residual, where it lies in bf16
  Owed owed_;
  std::vector<float> owing_;  // a block of what is owed, and of what it is sent with
  CollectedShares collected_;

  std::vector<BlockRecord> records_;  // of the operation in progress, by block
  std::vector<double> aimed_;         // density by sparse layer in the operation in progress
  std::vector<double> alphas_;        // likewise

  uint64_t earlier_ =
      0;  // operations that another bucket has committed before: random draws go on from there
  double scale_ = 1;
  bool flush_ = false;
  float factor_ = 1;         // on the residual
  float inverse_ranks_ = 1;  // factor on the result
  double clip_scale_ = 1;    // of bounds on the result in what a node adds to it
  double hop_factor_ = 1;    // of the segment in progress, on mean squares of gradients
  CompressionStats stats_;
};

}  // namespace gradwire::compress
