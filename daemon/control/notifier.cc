#include "daemon/control/notifier.h"

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

constexpr size_t kMaxStatusBytes = 512;

std::optional<uint64_t> number(const char* variable) {
  const char* const text = std::getenv(variable);
  uint64_t value = 0;
  if (text == nullptr || *text == '\0') {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  return error == std::errc() && *end == '\0' ? std::optional(value) : std::nullopt;
}

}  // namespace

Notifier::Notifier() {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) {
    return;
  }
  const size_t length = std::strlen(path);
  if (length < 2 || length >= sizeof(address_.sun_path)) {
    log_warning("notify_socket_ignored", {{"path", path}, {"cause", "the name is too short or too long"}});
    return;
  }
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path, path, length);
  if (path[0] == '@') {
    address_.sun_path[0] = '\0';
  }
  address_bytes_ =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length + (path[0] == '@' ? 0 : 1));
  socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto pid = number("WATCHDOG_PID");
  if (!pid || *pid == static_cast<uint64_t>(getpid())) {
    watchdog_limit_ = std::chrono::microseconds(number("WATCHDOG_USEC").value_or(0));
  }
}

bool Notifier::send(std::string_view message) {
  if (!socket_.valid()) {
    return true;
  }
  const ssize_t sent = ::sendto(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                                reinterpret_cast<const sockaddr*>(&address_), address_bytes_);
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOBUFS) {
    log_warning("notify_failed", {{"cause", std::strerror(errno)}});
    return true;  // trying again does not help
  }
  return sent >= 0;
}

void Notifier::must_arrive(std::string message) {
  waiting_.push_back(std::move(message));
  retry();
}

void Notifier::retry() {
  while (!waiting_.empty() && send(waiting_.front())) {
    waiting_.pop_front();
  }
}

void Notifier::ready() {
  must_arrive("READY=1");
}

void Notifier::reloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t usec =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
  must_arrive("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(usec));
}

void Notifier::stopping() {
  must_arrive("STOPPING=1");
}

void Notifier::status(const std::string& text) {
  const std::string line = one_line(text, kMaxStatusBytes);
  if (line != status_ && send("STATUS=" + line)) {
    status_ = line;
  }
}

void Notifier::watchdog() {
  send("WATCHDOG=1");
}

}  // namespace gradwire::control
