// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), as in iSCSI and ext4. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::compress {

// Of `bytes`, going on from the checksum of what came before them; 0 at the beginning.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace gradwire::compress
