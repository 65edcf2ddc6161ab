#include "daemon/engine/message.h"

#include <bit>
#include <cstring>
#include <sstream>

#include "client/layout/session_layout.h"
#include "config/base/loss_scale.h"
#include "daemon/engine/engine.h"

namespace gradwire::engine {

namespace {

constexpr size_t kDtypes = 7;
constexpr size_t kReduceOps = 5;

std::string_view operation_name(uint8_t operation) {
  switch (operation) {
    case layout::kOpAllreduce:
      return "allreduce";
    case layout::kOpBroadcast:
      return "broadcast";
    case layout::kOpBarrier:
      return "barrier";
    case layout::kOpAllgather:
      return "allgather";
    case layout::kOpReduceScatter:
      return "reduce_scatter";
    default:
      return "unknown operation";
  }
}

bool kind_fits_operation(uint8_t kind, uint8_t operation) {
  switch (static_cast<MessageKind>(kind)) {
    case MessageKind::kReduce:
      return operation == layout::kOpAllreduce || operation == layout::kOpBarrier ||
             operation == layout::kOpReduceScatter;
    case MessageKind::kGather:
      return operation == layout::kOpAllreduce || operation == layout::kOpBarrier ||
             operation == layout::kOpAllgather;
    case MessageKind::kGrant:
      return operation >= layout::kOpAllreduce && operation <= layout::kOpReduceScatter;
    case MessageKind::kBroadcast:
      return operation == layout::kOpBroadcast;
  }
  return false;
}

}  // namespace

std::string_view dtype_name(uint8_t dtype) {
  constexpr std::array<std::string_view, kDtypes> kNames = {"float32", "float16", "bfloat16", "float64",
                                                            "int32",   "int64",   "uint8"};
  return dtype < kNames.size() ? kNames[dtype] : "unknown type";
}

std::string_view reduce_op_name(uint8_t reduce_op) {
  constexpr std::array<std::string_view, kReduceOps> kNames = {"sum", "average", "min", "max", "product"};
  return reduce_op < kNames.size() ? kNames[reduce_op] : "unknown reduction";
}

std::string_view message_kind_name(uint8_t kind) {
  constexpr std::array<std::string_view, 5> kNames = {"unknown kind", "reduce", "gather", "grant",
                                                      "broadcast"};
  return kind < kNames.size() ? kNames[kind] : kNames[0];
}

std::string_view algorithm_name(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect ? "direct" : "ring";
}

Signature signature_of(const MessageHeader& header) {
  Signature signature;
  signature.operation = header.operation;
  signature.reduce_op = header.reduce_op;
  signature.dtype = header.dtype;
  signature.root = header.root;
  signature.scale_bits = header.scale_bits;
  signature.elements = header.elements;
  signature.layout = header.layout;
  signature.flush = (header.flags & kMessageFlush) != 0;
  signature.direct = (header.flags & kMessageDirect) != 0;
  return signature;
}

std::string describe(const Signature& signature) {
  std::ostringstream text;
  text << (signature.flush ? "flush" : operation_name(signature.operation));
  if (signature.operation == layout::kOpAllreduce || signature.operation == layout::kOpReduceScatter) {
    text << " " << reduce_op_name(signature.reduce_op);
  }
  text << (signature.direct ? ", direct," : "") << " of " << signature.elements << " "
       << dtype_name(signature.dtype);
  if (signature.operation == layout::kOpBroadcast) {
    text << " from rank " << signature.root;
  } else if (signature.operation == layout::kOpAllreduce) {
    text << " with scale " << std::bit_cast<double>(signature.scale_bits);
  }
  text << " (layout " << std::hex << signature.layout << ")";
  return text.str();
}

uint64_t message_checksum(const MessageHeader& header) {
  std::array<uint64_t, sizeof(MessageHeader) / 8> words;
  std::memcpy(words.data(), &header, sizeof(header));
  uint64_t hash = 0x9e3779b97f4a7c15u;
  // Every step is a bijection of the state, so a change of one word cannot be undone by the following ones.
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    hash = (hash ^ words[i]) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

bool read_key(std::span<const std::byte> header, std::array<std::byte, 16>* key) {
  if (header.size() < key->size()) {
    return false;
  }
  std::memcpy(key->data(), header.data(), key->size());
  return true;
}

std::string_view parse_message(std::span<const std::byte> header, size_t payload_bytes, MessageHeader* out) {
  if (header.size() != sizeof(MessageHeader)) {
    return "the header is not 96 bytes long";
  }
  std::memcpy(out, header.data(), sizeof(MessageHeader));
  if (out->magic != kMessageMagic) {
    return "the header's magic is wrong: the daemons' versions differ";
  }
  if (out->checksum != message_checksum(*out)) {
    return "the header's checksum is wrong";
  }
  if (!kind_fits_operation(out->kind, out->operation)) {
    return "kind and operation do not fit together";
  }
  if (out->reduce_op >= kReduceOps || out->dtype >= kDtypes) {
    return "the reduction or the element type is unknown";
  }
  if (!is_loss_scale(std::bit_cast<double>(out->scale_bits))) {
    return "the scale is not from 2^-60 to 2^60";
  }
  if (out->sequence == 0) {
    return "the sequence number is 0";
  }
  if ((out->flags & ~(kMessageNotFinite | kMessageFlush | kMessageDirect)) != 0) {
    return "unknown flags are set";
  }
  if ((out->flags & kMessageFlush) != 0 && out->operation != layout::kOpAllreduce) {
    return "only an allreduce can be a flush";
  }
  if ((out->flags & kMessageDirect) != 0 && out->operation != layout::kOpAllreduce) {
    return "only an allreduce can be direct";
  }
  if (out->payload_bytes != payload_bytes) {
    return "the payload is not as long as the header says";
  }
  const bool grant = out->kind == static_cast<uint8_t>(MessageKind::kGrant);
  if (grant && (payload_bytes != 0 || out->hop != 0 || out->chunk != 0 || out->segment != 0 ||
                (out->flags & kMessageNotFinite) != 0)) {
    return "a grant carries data";
  }
  return {};
}

}  // namespace gradwire::engine
