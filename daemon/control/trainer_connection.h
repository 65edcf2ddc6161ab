// One trainer's socket: documents in, documents with descriptors out, and its death, which the pidfd tells
// surely (forked children keep sockets open) and the socket's end tells second. On the control thread.
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

  Status start();
  // The daemon stops: what was sent goes out first, as far as the socket takes it at once.
  void close();

 private:
  struct Outgoing {
    std::string frame;
    size_t sent = 0;
    Session::Descriptors descriptors;
  };

  void wait_readable();
  void readable();
  void send(const Json& document, const Session::Descriptors& descriptors);
  void write();
  void wait_death();
  bool is_dead() const;
  void socket_ended();
  void end(const std::string& why);

  asio::local::stream_protocol::socket socket_;
  asio::posix::stream_descriptor pidfd_;
  asio::steady_timer timer_;
  LocalServer& server_;
  const uint64_t id_;
  std::shared_ptr<Session> session_;
  wire::FrameReader reader_;
  std::deque<Outgoing> outbox_;
  size_t outbox_bytes_ = 0;
  bool waiting_writable_ = false;
  bool ended_ = false;
};

}  // namespace gradwire::control
