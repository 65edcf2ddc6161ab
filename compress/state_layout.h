// Numbers of docs/state-format.md that its writer and its reader share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradwire::compress::state_layout {

inline constexpr std::array<char, 8> kMagic = {'G', 'W', 'S', 'T', 'A', 'T', 'E', '\n'};
inline constexpr uint32_t kByteOrder = 0x0a0b0c0d;
inline constexpr uint32_t kVersion = 2;
inline constexpr uint32_t kOldestVersion = 1;
inline constexpr uint32_t kSectionMark = 0x55425747;  // "GWBU"
inline constexpr uint32_t kLayerMark = 0x414c5747;    // "GWLA"
inline constexpr uint32_t kEndMark = 0x4e455747;      // "GWEN"

inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kSectionBytes = 12;  // before its name
inline constexpr size_t kLayerBytes = 88;    // before its name
inline constexpr size_t kLayerBytesOfVersion1 = 64;
inline constexpr size_t kPiecesAt = 56;  // of a layer: how many pieces it has; then its contents
inline constexpr size_t kReservedAt = 68;
inline constexpr size_t kPieceBytes = 16;
inline constexpr size_t kCrcBytes = 4;
inline constexpr size_t kEndBytes = 8;

// Bits of a layer's contents, which follow it in this order. Neither: it was sent exactly in the end, and its
// controllers wait for times when it is not.
inline constexpr uint32_t kHasResidual = 1;
inline constexpr uint32_t kHasVelocity = 2;

inline constexpr uint32_t kMaxName = 4096;
inline constexpr uint32_t kMaxPieces = 65536;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 40;
inline constexpr uint64_t kMaxOperations = uint64_t{1} << 48;

}  // namespace gradwire::compress::state_layout
