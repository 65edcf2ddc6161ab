// Reading from a Unix socket whose other end a client holds: bytes only, never the descriptors that a client
// may have sent along. To take such a descriptor out, even without keeping it, may be to close its last copy,
// and that may take long (a connection that lingers).
#pragma once

#include <cstddef>
#include <span>

namespace gradwire::engine {

struct Taken {
  enum class Kind {
    kBytes,        // `count` of them, without a descriptor
    kNothing,      // nothing is there yet
    kEnd,          // nothing will come any more
    kDescriptors,  // the next bytes carry descriptors: they stay where they are, and so does what is behind
  };
  Kind kind = Kind::kNothing;
  size_t count = 0;
};

// Urgent bytes stay in line: out of it, take_plain() would not see what comes with them. Before the first
// take_plain() of a socket.
void keep_urgent_in_line(int fd);

// Never waits. Any thread, one at a time for a socket.
Taken take_plain(int fd, std::span<char> into);

}  // namespace gradwire::engine
