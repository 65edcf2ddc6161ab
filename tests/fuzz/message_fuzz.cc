// Arbitrary bytes as the header of a message between engines.
//
// Input: whether the checksum is put right, the payload's size (4 bytes), then the header.
#include <string>
#include <vector>

#include "daemon/engine/message.h"
#include "tests/fuzz/input.h"

namespace gradwire::engine {
namespace {

using fuzz::require;

void check(std::span<const std::byte> header, size_t payload_bytes) {
  MessageHeader message{};
  if (!parse_message(header, payload_bytes, &message).empty()) {
    return;
  }
  require(header.size() == sizeof message, "a header has one size");
  require(std::memcmp(&message, header.data(), sizeof message) == 0, "what was parsed is what came");
  require(message.magic == kMessageMagic && message.checksum == message_checksum(message), "magic, checksum");
  require(message.payload_bytes == payload_bytes, "the payload's size is the announced one");
  require((message.flags & ~(kMessageNotFinite | kMessageFlush | kMessageDirect)) == 0, "no unknown flag");
  require(!message_kind_name(message.kind).empty(), "the kind has a name");
  require(!describe(signature_of(message)).empty(), "the operation can be named");
  // Damage to one word is found for certain.
  for (size_t word = 0; word < sizeof message; word += 8) {
    MessageHeader damaged = message;
    reinterpret_cast<uint8_t*>(&damaged)[word + word / 8 % 8] ^= 0x10;
    MessageHeader out{};
    const auto bytes = std::as_bytes(std::span(&damaged, 1));
    require(!parse_message(bytes, payload_bytes, &out).empty(), "one damaged word is found");
  }
}

}  // namespace
}  // namespace gradwire::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::engine;  // NOLINT(google-build-using-namespace)
  gradwire::fuzz::Input input(data, size);
  const bool repair = input.number() % 2 == 1;
  const size_t payload_bytes = input.number<uint32_t>();
  std::vector<std::byte> header(std::as_bytes(input.rest()).begin(), std::as_bytes(input.rest()).end());
  std::array<std::byte, 16> key{};
  gradwire::fuzz::require(read_key(header, &key) == (header.size() >= key.size()), "a key has 16 bytes");
  if (repair && header.size() == sizeof(MessageHeader)) {
    MessageHeader message;
    std::memcpy(&message, header.data(), sizeof message);
    message.magic = kMessageMagic;
    message.payload_bytes = static_cast<uint32_t>(payload_bytes);
    message.checksum = message_checksum(message);
    std::memcpy(header.data(), &message, sizeof message);
  }
  check(header, payload_bytes);
  return 0;
}
