#include "daemon/control/trainer_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

using boost::system::error_code;

constexpr Nanoseconds kFirstRequest = std::chrono::seconds(10);
constexpr Nanoseconds kDeathIsNear = std::chrono::milliseconds(30);
constexpr size_t kMaxOutbox = size_t{4} << 20;
constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5

// -1 where the process is in a pid namespace that this daemon does not see.
int open_pidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) {
    return fd;
  }
  return pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
}

}  // namespace

TrainerConnection::TrainerConnection(asio::local::stream_protocol::socket socket, LocalServer& server,
                                     uint64_t id)
    : socket_(std::move(socket)),
      pidfd_(socket_.get_executor()),
      timer_(socket_.get_executor()),
      server_(server),
      id_(id) {}

Status TrainerConnection::start() {
  ucred peer{};
  socklen_t size = sizeof(peer);
  const int fd = socket_.native_handle();
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Status(Code::kPermissionDenied,
                  std::string("no credentials of a trainer: ") + std::strerror(errno));
  }
  error_code ignored;
  socket_.non_blocking(true, ignored);
  if (const int pidfd = open_pidfd(fd, peer.pid); pidfd >= 0) {
    pidfd_.assign(pidfd, ignored);
  }
  session_ = std::make_shared<Session>(
      server_.node_, server_.members_, peer.uid, peer.pid,
      [weak = weak_from_this()](const Json& document, const Session::Descriptors& descriptors) {
        if (const auto self = weak.lock()) {
          self->send(document, descriptors);
        }
      });
  timer_.expires_after(kFirstRequest);
  timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (self && !error && self->session_ && self->session_->fresh()) {
      self->end("asked for nothing in time");
    }
  });
  wait_readable();
  wait_death();
  return ok_status();
}

void TrainerConnection::wait_readable() {
  socket_.async_wait(asio::socket_base::wait_read, [self = shared_from_this()](const error_code& error) {
    if (!error && !self->ended_) {
      self->readable();
    }
  });
}

void TrainerConnection::readable() {
  std::array<char, 16384> buffer;
  std::vector<wire::UniqueFd> unwanted;  // closed here: trainers have nothing to pass
  const auto received = wire::receive_some(socket_.native_handle(), buffer, &unwanted);
  if (!received.ok() || received->end_of_file) {
    socket_ended();
    return;
  }
  Status status = reader_.feed(buffer.data(), received->bytes);
  while (status.ok() && !ended_) {
    const auto text = reader_.next();
    if (!text) {
      break;
    }
    const Result<Json> document = parse_document(*text);
    status = document.status();
    if (document.ok()) {
      session_->document(*document);
    }
  }
  if (ended_) {
    return;
  }
  if (!status.ok()) {
    session_->refuse(status);
    end("sent what is not a document (" + status.message() + ")");
    return;
  }
  wait_readable();
}

void TrainerConnection::send(const Json& document, const Session::Descriptors& descriptors) {
  if (ended_) {
    return;
  }
  outbox_.push_back({wire::encode_frame(write_document(document)), 0, descriptors});
  outbox_bytes_ += outbox_.back().frame.size();
  if (outbox_bytes_ > kMaxOutbox) {
    asio::post(socket_.get_executor(),
               [self = shared_from_this()] { self->end("does not read its answers"); });
    return;
  }
  write();
}

void TrainerConnection::write() {
  while (!ended_ && !waiting_writable_ && !outbox_.empty()) {
    Outgoing& next = outbox_.front();
    std::vector<int> fds;
    if (next.sent == 0) {
      for (const auto& descriptor : next.descriptors) {
        fds.push_back(descriptor->get());
      }
    }
    const auto sent =
        wire::send_some(socket_.native_handle(), std::string_view(next.frame).substr(next.sent), fds);
    if (!sent.ok()) {
      asio::post(socket_.get_executor(), [self = shared_from_this()] { self->socket_ended(); });
      return;
    }
    if (*sent == 0) {
      waiting_writable_ = true;
      socket_.async_wait(asio::socket_base::wait_write, [self = shared_from_this()](const error_code& error) {
        self->waiting_writable_ = false;
        if (!error) {
          self->write();
        }
      });
      return;
    }
    next.sent += *sent;
    outbox_bytes_ -= *sent;
    if (next.sent == next.frame.size()) {
      outbox_.pop_front();
    }
  }
}

void TrainerConnection::wait_death() {
  if (!pidfd_.is_open()) {
    return;
  }
  pidfd_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const error_code& error) {
                      if (!error && !self->ended_) {
                        self->end("died (pid " + std::to_string(self->session_->pid()) + ")");
                      }
                    });
}

bool TrainerConnection::is_dead() const {
  pollfd entry{const_cast<asio::posix::stream_descriptor&>(pidfd_).native_handle(), POLLIN, 0};
  return pidfd_.is_open() && poll(&entry, 1, 0) == 1;
}

// A dying process closes its sockets a moment before its pidfd says so.
void TrainerConnection::socket_ended() {
  if (ended_) {
    return;
  }
  timer_.expires_after(is_dead() ? Nanoseconds(0) : kDeathIsNear);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && !self->ended_) {
      const std::string pid = " (pid " + std::to_string(self->session_->pid()) + ")";
      self->end(self->is_dead() ? "died" + pid : "closed its connection without leaving" + pid);
    }
  });
}

void TrainerConnection::end(const std::string& why) {
  if (ended_) {
    return;
  }
  const auto self = shared_from_this();
  close();
  session_->gone(why);
  server_.forget(id_);
}

void TrainerConnection::close() {
  if (!ended_) {
    ended_ = true;
    error_code ignored;
    timer_.cancel(ignored);
    socket_.close(ignored);
    pidfd_.close(ignored);
  }
}

}  // namespace gradwire::control
