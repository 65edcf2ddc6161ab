// Framing of the control protocol (docs/control-protocol.md): u32 little-endian length, then one document;
// and the passing of descriptors over a Unix socket. Both ends of the local socket use it, and the peers'
// links use the framing.
//
// Nothing here throws on purpose; memory is bounded by the limit given to the reader. A FrameReader is not
// thread-safe. Functions on sockets never raise SIGPIPE and never block on a non-blocking socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/wire/unique_fd.h"
#include "config/base/result.h"

namespace gradwire::wire {

inline constexpr size_t kMaxDocument = size_t{16} << 20;  // peers.max_document's default
inline constexpr size_t kFrameHeader = 4;
inline constexpr size_t kMaxDescriptors = 8;  // with one document

// The document with its length in front. The caller keeps it at or below the other side's limit.
std::string encode_frame(std::string_view document);

// Cuts a byte stream into documents.
class FrameReader {
 public:
  explicit FrameReader(size_t limit = kMaxDocument) : limit_(limit) {}

  // Appends received bytes, and says what status() does.
  Status feed(const char* bytes, size_t count);
  // The next complete document, oldest first. None: ask status() whether one can still come.
  std::optional<std::string> next();
  // kCorrupt, for good, as soon as every document before it was taken: one of 0 bytes or longer than the
  // limit is announced, and the link must be closed.
  const Status& status() const { return failure_; }
  // Bytes of a document that is not complete yet: an end-of-file here is a truncation.
  size_t pending() const { return buffer_.size() - consumed_; }

 private:
  void check_announcement();

  size_t limit_;
  std::string buffer_;
  size_t consumed_ = 0;  // bytes of buffer_ already given out
  Status failure_;
};

// One sendmsg: bytes, and descriptors (at most kMaxDescriptors) with the first of them. Returns how many
// bytes went, 0 if the socket would block. The descriptors went if the result is not 0. kUnavailable: the
// other side is gone.
Result<size_t> send_some(int socket, std::string_view bytes, std::span<const int> descriptors = {});

struct Received {
  size_t bytes = 0;
  bool would_block = false;
  bool end_of_file = false;
};
// One recvmsg into `buffer`; descriptors that came along are appended to `descriptors` (close-on-exec).
// kCorrupt: more descriptors than kMaxDescriptors; kUnavailable: the other side is gone.
Result<Received> receive_some(int socket, std::span<char> buffer, std::vector<UniqueFd>* descriptors);

}  // namespace gradwire::wire
