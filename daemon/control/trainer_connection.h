// One trainer's socket: documents in, documents with descriptors out, and its death, which the pidfd tells
// surely (forked children keep sockets open) and the socket's end tells second. On the control thread.
//
// A trainer may be in another pid or user namespace: SO_PEERPIDFD (Linux 6.5) needs no pid of ours, and where
// there is no pidfd the socket's end alone tells.
#pragma once

#include <array>
#include <deque>
#include <utility>
// Asio needs <utility> first under g++ 12.
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "client/wire/framing.h"
#include "daemon/control/local_server.h"
#include "daemon/control/session.h"

namespace gradwire::control {

class TrainerConnection : public std::enable_shared_from_this<TrainerConnection> {
 public:
  TrainerConnection(asio::local::stream_protocol::socket socket, LocalServer& server, uint64_t id);

  ~TrainerConnection();
  TrainerConnection(const TrainerConnection&) = delete;
  TrainerConnection& operator=(const TrainerConnection&) = delete;

  Status start();
  // The daemon stops: what was sent goes out first, as far as the socket takes it at once.
  void close();
  void end(const std::string& why);

  uint32_t uid() const { return uid_; }
  // It has no part in a job, not asked for or left: it may be closed to make room for others.
  bool unjoined() const { return session_ && session_->without_job(); }

 private:
  enum class Waiting { kForNothing, kForAJoin, kForTheRest };
  struct Outgoing {
    std::string frame;
    size_t sent = 0;
    Session::Descriptors descriptors;
  };

  void wait_readable();
  void readable();
  void take_documents(bool progress);
  void take_large();
  void refuse_and_end(const Status& status);
  void send(const Json& document, const Session::Descriptors& descriptors);
  void write();
  void watch(bool progress);
  bool account();
  void wait_death();
  void end_socket();
  bool is_dead() const;
  std::string probe() const;  // why it is gone; empty while it is there
  void socket_ended();
  std::string pid_text() const;  // " (pid 12)"; nothing where it has no pid here

  asio::local::stream_protocol::socket socket_;
  asio::posix::stream_descriptor pidfd_;
  asio::steady_timer deadline_;
  asio::steady_timer death_timer_;
  LocalServer& server_;
  const uint64_t id_;
  uint32_t uid_ = 0;
  std::shared_ptr<Session> session_;
  wire::FrameReader reader_;
  std::string large_;  // a document that waits for its turn; nothing is read meanwhile
  std::deque<Outgoing> outbox_;
  size_t outbox_bytes_ = 0;
  size_t accounted_ = 0;  // bytes, with server_.buffers_
  Waiting waiting_ = Waiting::kForNothing;
  bool waiting_writable_ = false;
  bool ended_ = false;
};

}  // namespace gradwire::control
