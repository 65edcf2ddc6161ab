#include "tools/run/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace gradwire::tools {
namespace {

constexpr size_t kLongestLine = 64 << 10;  // a longer one is passed on in parts

}  // namespace

bool write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote >= 0) {
      done += static_cast<size_t>(wrote);
    } else if (errno == EAGAIN) {  // somebody made our standard output non-blocking
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

LineRelay::LineRelay(UniqueFd from, int to, std::string mark)
    : from_(std::move(from)), to_(to), mark_(std::move(mark)) {
  ::fcntl(from_.get(), F_SETFL, O_NONBLOCK);
}

bool LineRelay::forward() {
  char buffer[16 << 10];
  while (open()) {
    const ssize_t got = ::read(from_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == EAGAIN) {
      return write_lines(false);
    }
    if (got <= 0) {
      from_.reset();
      return write_lines(true);
    }
    pending_.append(buffer, static_cast<size_t>(got));
    if (pending_.size() >= kLongestLine) {
      return write_lines(false);
    }
  }
  return true;
}

bool LineRelay::write_lines(bool all) {
  std::string out;
  size_t begin = 0;
  for (size_t end = 0; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    out.append(mark_).append(pending_, begin, end + 1 - begin);
  }
  pending_.erase(0, begin);
  if (!pending_.empty() && (all || pending_.size() >= kLongestLine)) {
    out.append(mark_).append(pending_).append("\n");
    pending_.clear();
  }
  return write_all(to_, out);
}

}  // namespace gradwire::tools
