#pragma once

#include <cstdint>
#include <string_view>

namespace gradwire::client {

// Well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, surrogates or values above 10FFFF.
inline bool is_utf8(std::string_view text) {
  size_t at = 0;
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  while (at < text.size()) {
    const unsigned char lead = byte(at);
    const size_t length = lead < 0x80                    ? 1
                          : lead >= 0xc2 && lead <= 0xdf ? 2
                          : (lead & 0xf0) == 0xe0        ? 3
                          : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                         : 0;
    if (length == 0 || text.size() - at < length) {
      return false;
    }
    for (size_t i = 1; i < length; ++i) {
      if ((byte(at + i) & 0xc0) != 0x80) {
        return false;
      }
    }
    if (length > 1) {
      const unsigned char second = byte(at + 1);
      if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
          (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
        return false;
      }
    }
    at += length;
  }
  return true;
}

}  // namespace gradwire::client
