#include "client/wire/framing.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace gradwire::wire {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * kMaxDescriptors);

uint32_t load_length(const char* bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < kFrameHeader; ++i) {
    length |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

void take_descriptors(msghdr* message, std::vector<UniqueFd>* descriptors) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors->emplace_back(fd);
    }
  }
}

}  // namespace

std::string encode_frame(std::string_view document) {
  std::string frame;
  frame.reserve(kFrameHeader + document.size());
  const auto length = static_cast<uint32_t>(document.size());
  for (size_t i = 0; i < kFrameHeader; ++i) {
    frame.push_back(static_cast<char>((length >> (8 * i)) & 0xff));
  }
  frame.append(document);
  return frame;
}

Status FrameReader::feed(const char* bytes, size_t count) {
  if (!failure_.ok()) {
    return failure_;
  }
  if (consumed_ == buffer_.size()) {
    buffer_.clear();
    consumed_ = 0;
  }
  buffer_.append(bytes, count);
  check_announcement();
  return failure_;
}

std::optional<std::string> FrameReader::next() {
  if (!failure_.ok() || pending() < kFrameHeader) {
    return std::nullopt;
  }
  const size_t length = load_length(buffer_.data() + consumed_);
  if (pending() - kFrameHeader < length) {
    return std::nullopt;
  }
  std::string document = buffer_.substr(consumed_ + kFrameHeader, length);
  consumed_ += kFrameHeader + length;
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  check_announcement();
  return document;
}

void FrameReader::check_announcement() {
  if (pending() < kFrameHeader) {
    return;
  }
  const size_t length = load_length(buffer_.data() + consumed_);
  if (length == 0 || length > limit_) {
    failure_ = Status(Code::kCorrupt, "a document of " + std::to_string(length) +
                                          " bytes was announced; 1 to " + std::to_string(limit_) +
                                          " are allowed, so the other end does not speak this protocol");
  }
}

Result<size_t> send_some(int socket, std::string_view bytes, std::span<const int> descriptors) {
  if (descriptors.size() > kMaxDescriptors) {
    return Status(Code::kInternal, "more than " + std::to_string(kMaxDescriptors) + " descriptors at once");
  }
  iovec vector{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[kControlBytes] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      return static_cast<size_t>(sent);
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return size_t{0};
    }
    return Status(Code::kUnavailable, std::string("sending failed: ") + std::strerror(errno));
  }
}

Result<Received> receive_some(int socket, std::span<char> buffer, std::vector<UniqueFd>* descriptors) {
  iovec vector{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[kControlBytes];
  for (;;) {
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (received < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return Received{0, true, false};
      }
      return Status(Code::kUnavailable, std::string("receiving failed: ") + std::strerror(errno));
    }
    take_descriptors(&message, descriptors);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      return Status(Code::kCorrupt, "descriptors were lost: more than " + std::to_string(kMaxDescriptors) +
                                        " came at once, or this process has no room for them (ulimit -n)");
    }
    return Received{static_cast<size_t>(received), false, received == 0};
  }
}

}  // namespace gradwire::wire
