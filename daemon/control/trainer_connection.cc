#include "daemon/control/trainer_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/control/large_documents.h"
#include "daemon/control/log.h"
#include "daemon/engine/plain_bytes.h"

namespace gradwire::control {
namespace {

using boost::system::error_code;

constexpr Nanoseconds kUntilJoin = std::chrono::seconds(10);     // for each whole document before the join
constexpr Nanoseconds kUntilTheRest = std::chrono::seconds(60);  // of a document, once joined
constexpr Nanoseconds kDeathIsNear = std::chrono::milliseconds(30);
constexpr size_t kMaxUnjoinedDocument = size_t{64} << 10;
constexpr size_t kMaxOutbox = size_t{1} << 20;  // of answers that wait for those before them
constexpr int kSoPeerPidfd = 77;                // SO_PEERPIDFD, Linux 6.5

// -1 where the process is in a pid namespace that this daemon does not see, and the kernel is older.
int open_pidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) {
    return fd;
  }
  return pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
}

Status too_long_without_a_job() {
  return Status(Code::kCorrupt, "a document without a part in a job is longer than " +
                                    std::to_string(kMaxUnjoinedDocument) + " bytes");
}

}  // namespace

TrainerConnection::TrainerConnection(asio::local::stream_protocol::socket socket, LocalServer& server,
                                     uint64_t id)
    : socket_(std::move(socket)),
      pidfd_(socket_.get_executor()),
      deadline_(socket_.get_executor()),
      death_timer_(socket_.get_executor()),
      server_(server),
      id_(id) {}

TrainerConnection::~TrainerConnection() {
  end_socket();
}

Status TrainerConnection::start() {
  ucred peer{};
  socklen_t size = sizeof(peer);
  const int fd = socket_.native_handle();
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Status(Code::kPermissionDenied,
                  std::string("no credentials of a trainer: ") + std::strerror(errno));
  }
  uid_ = peer.uid;
  error_code ignored;
  socket_.non_blocking(true, ignored);
  engine::keep_urgent_in_line(fd);
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
  session_->set_probe([weak = weak_from_this()] {
    const auto self = weak.lock();
    return self ? self->probe() : std::string("closed its connection");
  });
  watch(true);
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
  using Kind = engine::Taken::Kind;
  std::array<char, 16384> buffer;
  const engine::Taken taken = engine::take_plain(socket_.native_handle(), buffer);
  if (taken.kind == Kind::kEnd) {
    socket_ended();
  } else if (taken.kind == Kind::kDescriptors) {
    refuse_and_end(Status(Code::kInvalidArgument, "the trainer sent descriptors" + pid_text() +
                                                      "; a daemon takes none, send documents only"));
  } else if (taken.kind == Kind::kNothing) {
    wait_readable();
  } else {
    (void)reader_.feed(buffer.data(), taken.count);  // take_documents() asks for the status
    take_documents(false);
  }
}

// What has come, up to a large document, which waits for its turn. `progress`: a whole one was taken before.
void TrainerConnection::take_documents(bool progress) {
  Status status;
  while (status.ok() && !ended_ && large_.empty()) {
    auto text = reader_.next();
    if (!text) {
      status = reader_.status();
      break;
    }
    progress = true;
    if (session_->without_job() && text->size() > kMaxUnjoinedDocument) {
      status = too_long_without_a_job();
    } else if (LargeDocuments::is_large(*text)) {
      large_ = std::move(*text);
      LargeDocuments::of(socket_.get_executor()).wait([self = shared_from_this()] { self->take_large(); });
    } else {
      status = session_->take(*text);
    }
  }
  if (ended_) {
    return;
  }
  if (status.ok() && session_->without_job() && reader_.pending() > kMaxUnjoinedDocument) {
    status = too_long_without_a_job();
  }
  if (status.ok() && !account()) {
    status = Status(Code::kResourceExhausted,
                    "user " + std::to_string(uid_) +
                        " has sent too much that is not taken yet; send fewer and smaller documents at once");
  }
  if (!status.ok()) {
    refuse_and_end(status);
    return;
  }
  watch(progress);
  if (large_.empty()) {
    wait_readable();
  }
}

void TrainerConnection::take_large() {
  if (ended_) {
    return;
  }
  const Status status = session_->take(std::exchange(large_, {}));
  if (status.ok()) {
    take_documents(true);
  } else if (!ended_) {
    refuse_and_end(status);
  }
}

void TrainerConnection::refuse_and_end(const Status& status) {
  session_->refuse(status);
  end(status.code() == Code::kCorrupt ? "sent what is not a document (" + status.message() + ")"
                                      : status.message());
}

void TrainerConnection::send(const Json& document, const Session::Descriptors& descriptors) {
  if (ended_) {
    return;
  }
  const bool behind = outbox_bytes_ > kMaxOutbox;
  outbox_.push_back({wire::encode_frame(write_document(document)), 0, descriptors});
  outbox_bytes_ += outbox_.back().frame.size();
  write();
  watch(false);
  if (behind || !account()) {
    asio::post(socket_.get_executor(),
               [self = shared_from_this()] { self->end("does not read its answers" + self->pid_text()); });
  }
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
        if (!error && !self->ended_) {
          self->write();
          (void)self->account();  // it is less than before
        }
      });
      return;
    }
    next.sent += *sent;
    outbox_bytes_ -= *sent;
    if (next.sent == next.frame.size()) {
      outbox_.pop_front();
    } else {
      next.descriptors.clear();  // they went with the first bytes
    }
  }
}

// Keeps the time for what the trainer owes: a document before it has joined, the rest of one that has begun.
// `progress`: a whole document has come.
void TrainerConnection::watch(bool progress) {
  if (ended_) {
    return;
  }
  const Waiting now = !large_.empty()           ? Waiting::kForNothing
                      : session_->without_job() ? Waiting::kForAJoin
                      : reader_.pending() != 0  ? Waiting::kForTheRest
                                                : Waiting::kForNothing;
  if (now == waiting_ && !progress) {
    return;
  }
  waiting_ = now;
  error_code ignored;
  deadline_.cancel(ignored);
  if (now == Waiting::kForNothing) {
    return;
  }
  deadline_.expires_after(now == Waiting::kForAJoin ? kUntilJoin : kUntilTheRest);
  deadline_.async_wait([weak = weak_from_this(), now](const error_code& error) {
    const auto self = weak.lock();
    if (self && !error && !self->ended_ && self->waiting_ == now) {
      self->end(now == Waiting::kForAJoin ? "has no part in a job, and asked for none in time"
                                          : "did not send the rest of a document in time" + self->pid_text());
    }
  });
}

bool TrainerConnection::account() {
  const size_t holds = ended_ ? 0 : reader_.pending() + large_.size() + outbox_bytes_;
  if (!server_.buffers_.change(uid_, accounted_, holds)) {
    return false;
  }
  accounted_ = holds;
  return true;
}

void TrainerConnection::wait_death() {
  if (!pidfd_.is_open()) {
    return;
  }
  pidfd_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const error_code& error) {
                      if (!error && !self->ended_) {
                        self->end("died" + self->pid_text());
                      }
                    });
}

bool TrainerConnection::is_dead() const {
  pollfd entry{const_cast<asio::posix::stream_descriptor&>(pidfd_).native_handle(), POLLIN, 0};
  return pidfd_.is_open() && poll(&entry, 1, 0) == 1;
}

std::string TrainerConnection::probe() const {
  if (ended_) {
    return "closed its connection" + pid_text();
  }
  if (is_dead()) {
    return "died" + pid_text();
  }
  char byte = 0;
  const int fd = const_cast<asio::local::stream_protocol::socket&>(socket_).native_handle();
  return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0
             ? "closed its connection without leaving" + pid_text()
             : std::string();
}

std::string TrainerConnection::pid_text() const {
  return session_->pid() > 0 ? " (pid " + std::to_string(session_->pid()) + ")" : "";
}

// A dying process closes its sockets a moment before its pidfd says so.
void TrainerConnection::socket_ended() {
  if (ended_) {
    return;
  }
  death_timer_.expires_after(is_dead() ? Nanoseconds(0) : kDeathIsNear);
  death_timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && !self->ended_) {
      self->end((self->is_dead() ? "died" : "closed its connection without leaving") + self->pid_text());
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

void TrainerConnection::end_socket() {
  if (socket_.is_open()) {
    server_.end_socket(socket_);
  }
}

void TrainerConnection::close() {
  if (!ended_) {
    ended_ = true;
    (void)account();
    error_code ignored;
    deadline_.cancel(ignored);
    death_timer_.cancel(ignored);
    end_socket();
    pidfd_.close(ignored);
    outbox_.clear();
    large_.clear();
  }
}

}  // namespace gradwire::control
