// The header of every message between engines: 96 bytes, little-endian, no padding. docs/wire-format.md,
// "Data messages", is the specification.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace gradwire::engine {

static_assert(std::endian::native == std::endian::little, "messages are copied as they lie in memory");

// Values travel in messages: never renumber.
enum class MessageKind : uint8_t {
  kReduce = 1,     // a partial sum on its way to the owner of its chunk
  kGather = 2,     // a finished sum, or a rank's shard as it is, on its way to everybody
  kGrant = 3,      // "I have started this operation: send"
  kBroadcast = 4,  // the root's bytes as they are
};

inline constexpr uint32_t kMessageMagic = 0x31445747;  // "GWD1"
// Flags.
inline constexpr uint32_t kMessageNotFinite = 1u;
inline constexpr uint32_t kMessageFlush = 2u;   // belongs to the signature; allreduce only
inline constexpr uint32_t kMessageDirect = 4u;  // the same: Algorithm::kDirect

struct MessageHeader {
  std::array<std::byte, 16> key;  // of the job's epoch
  uint32_t magic;
  uint8_t kind;
  // The operation's signature: what all nodes must agree on.
  uint8_t operation;  // layout::kOp...
  uint8_t reduce_op;  // compress::ReduceOp
  uint8_t dtype;      // compress::Dtype
  uint64_t sequence;
  uint64_t scale_bits;  // of the binary64 loss scale
  uint64_t elements;    // of the bucket
  uint64_t layout;      // hash of how the bucket is cut and coded
  uint32_t bucket;
  uint32_t root;  // rank; broadcast only
  // This message.
  uint32_t from_node;
  // 0 .. P-2 for reduce, P-1 .. 2P-3 for gather, 0 for grants and broadcasts; straight to and from the owner
  // of a chunk 0 for reduce and P-1 for gather.
  uint32_t hop;
  uint32_t chunk;    // 0 for grants and broadcasts
  uint32_t segment;  // within its chunk, or of the broadcast
  uint32_t payload_bytes;
  uint32_t flags;
  uint64_t checksum;  // of the 88 bytes before it
};
static_assert(sizeof(MessageHeader) == 96 && std::is_trivially_copyable_v<MessageHeader>);
static_assert(std::has_unique_object_representations_v<MessageHeader>, "no padding");

// What must be equal on all local ranks and all nodes for one (bucket, sequence).
struct Signature {
  uint8_t operation = 0;
  uint8_t reduce_op = 0;
  uint8_t dtype = 0;
  uint32_t root = 0;
  uint64_t scale_bits = 0;
  uint64_t elements = 0;
  uint64_t layout = 0;
  bool flush = false;
  bool direct = false;
  bool operator==(const Signature&) const = default;
};

Signature signature_of(const MessageHeader& header);
// "allreduce average of 1,000 float32, scale 1": for error sentences.
std::string describe(const Signature& signature);
std::string_view dtype_name(uint8_t dtype);
std::string_view reduce_op_name(uint8_t reduce_op);
std::string_view message_kind_name(uint8_t kind);

inline std::span<const std::byte> bytes_of(const MessageHeader& header) {
  return std::as_bytes(std::span<const MessageHeader, 1>(&header, 1));
}

// Any change within one aligned 8-byte word of the header changes it.
uint64_t message_checksum(const MessageHeader& header);

// The key alone, so that strays are told from damage. False if the header is too short to hold one.
bool read_key(std::span<const std::byte> header, std::array<std::byte, 16>* key);
// Copies and checks everything that can be checked without knowing the job. Returns what is wrong, empty if
// nothing.
std::string_view parse_message(std::span<const std::byte> header, size_t payload_bytes, MessageHeader* out);

}  // namespace gradwire::engine
