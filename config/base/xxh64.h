// XXH64, 64 bits of any bytes: finds damage, proves nothing against intent. Written after the specification
// "xxHash fast digest algorithm", version 0.1.1 (Yann Collet). Pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gradwire {

namespace xxh64_detail {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

inline constexpr uint64_t kPrime1 = 0x9e3779b185ebca87;
inline constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4f;
inline constexpr uint64_t kPrime3 = 0x165667b19e3779f9;
inline constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63;
inline constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5;

template <typename Word>
Word read(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

constexpr uint64_t round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

constexpr uint64_t merge(uint64_t sum, uint64_t lane) {
  return (sum ^ round(0, lane)) * kPrime1 + kPrime4;
}

constexpr uint64_t finish(uint64_t sum) {
  sum = (sum ^ (sum >> 33)) * kPrime2;
  sum = (sum ^ (sum >> 29)) * kPrime3;
  return sum ^ (sum >> 32);
}

}  // namespace xxh64_detail

inline uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed) {
  using namespace xxh64_detail;  // NOLINT(google-build-using-namespace): its own
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t sum = seed + kPrime5;
  if (left >= 32) {
    uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; left >= 32; left -= 32) {
      for (uint64_t& lane : lanes) {
        lane = round(lane, read<uint64_t>(at));
        at += 8;
      }
    }
    sum = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const uint64_t lane : lanes) {
      sum = merge(sum, lane);
    }
  }
  sum += bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    sum = std::rotl(sum ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    sum = std::rotl(sum ^ (read<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    left -= 4;
    at += 4;
  }
  for (; left > 0; --left, ++at) {
    sum = std::rotl(sum ^ (static_cast<uint64_t>(*at) * kPrime5), 11) * kPrime1;
  }
  return finish(sum);
}

}  // namespace gradwire
