// What a codec of a compressed bucket is, and the table of all of them.
//
// A codec turns one block of a sum into bytes and back. Two kinds: a *hop* codec encodes the partial sum in
// every hop, keeps what it did not send as residual, and so conserves the gradient; a *tally* codec counts
// votes along the ring, and its owner finishes the count. docs/adding-a-codec.md shows how to write one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "compress/accumulate.h"
#include "compress/block.h"
#include "compress/reducer.h"

namespace gradwire::compress {

enum class CodecKind : uint8_t { kHop, kTally };

// What decides which elements a block sends.
enum class Selection : uint8_t {
  kAll,     // every one
  kRms,     // those above a multiple of the layer's root mean square (LADS)
  kTop,     // the largest of each block, as many as the density says
  kSampled  // those above a quantile of a sample of the step before (gradient dropping)
};

// What a reducer has for one of its codecs.
struct CodecUse {
  CodecSettings settings;
  uint32_t largest = 0;  // elements of the largest block; at least 1
  uint32_t nodes = 1;
};

// One instance belongs to one reducer and may keep scratch memory; it keeps nothing from block to block. Not
// thread-safe. Blocks have 1 to CodecUse::largest elements.
class BlockCodec {
 public:
  virtual ~BlockCodec() = default;

  // The most bytes that a block of `elements` takes, in any state of the operation.
  virtual size_t max_bytes(uint64_t elements) const = 0;

  // S = ((D(arrived) + e) + g1) + ... in input.next; writes Q(S) to `out`, leaves S - D(Q(S)) in input.next.
  // A tally codec adds its own vote to the arrived ones instead, and S is without them. kCorrupt: the arrived
  // bytes are not what hop() writes for a block of that many elements.
  virtual Result<BlockOutcome> hop(const BlockInput& input, std::byte* out, BlockRecord& record) = 0;

  // What the owner's block (hop()'s bytes) becomes for everybody; in place, never longer; returns its bytes.
  virtual size_t finish(std::byte* block, size_t bytes, uint32_t elements) const {
    (void)block;
    (void)elements;
    return bytes;
  }

  // result[i] = D(bytes)[i] * factor of a finished block. kCorrupt as above.
  virtual Status decode(ByteReader& bytes, uint32_t elements, float factor, float* result) = 0;

  // sum[i] += D(bytes)[i] of a hop codec's block; `scratch` has room for its elements. kCorrupt as above, and
  // the sum is spoilt then.
  virtual Status add_decoded(ByteReader& bytes, uint32_t elements, float* scratch, float* sum) {
    GRADWIRE_RETURN_IF_ERROR(decode(bytes, elements, 1.0F, scratch));
    compress::add(sum, scratch, sum, elements);
    return ok_status();
  }

  // Bytes of scratch that it holds.
  virtual uint64_t memory() const { return 0; }
};

struct CodecRow {
  std::string_view name;
  CodecKind kind = CodecKind::kHop;
  Selection selection = Selection::kAll;
  std::string_view small;  // the codec of layers under `dense_below`; empty: this one
  bool rounds = false;     // goes by CodecSettings::rounding and steps_per_octave
  uint32_t block = 0;      // elements of a whole block
  // Bytes that an instance holds for an element of its largest block.
  uint32_t (*scratch)(const CodecSettings& settings) = nullptr;
  std::unique_ptr<BlockCodec> (*make)(const CodecUse& use) = nullptr;  // null: raw elements
};

std::span<const CodecRow> codec_table();
const CodecRow* find_codec(std::string_view name);  // null: there is none of that name

// The makers that the table names, each defined in its codec's own file.
std::unique_ptr<BlockCodec> make_l8(const CodecUse& use);
uint32_t l8_scratch(const CodecSettings& settings);
std::unique_ptr<BlockCodec> make_fp16(const CodecUse& use);
std::unique_ptr<BlockCodec> make_bf16(const CodecUse& use);
std::unique_ptr<BlockCodec> make_int8(const CodecUse& use);
std::unique_ptr<BlockCodec> make_int4(const CodecUse& use);
std::unique_ptr<BlockCodec> make_onebit(const CodecUse& use);
std::unique_ptr<BlockCodec> make_sign(const CodecUse& use);
std::unique_ptr<BlockCodec> make_sparse_raw(const CodecUse& use);
std::unique_ptr<BlockCodec> make_sparse_l8(const CodecUse& use);

}  // namespace gradwire::compress
