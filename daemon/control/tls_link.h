// A Link over TLS, and its handshake. On the control thread.
#pragma once

#include <deque>
#include <memory>
#include <utility>
// Asio needs <utility> first under g++ 12.
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>

#include "client/wire/framing.h"
#include "daemon/control/link.h"

namespace gradwire::control {

namespace asio = boost::asio;

class TlsLink final : public Link, public std::enable_shared_from_this<TlsLink> {
 public:
  using Tcp = asio::ip::tcp;
  // `token` is held as long as the socket is: connections are counted by it.
  TlsLink(Tcp::socket socket, asio::ssl::context& context, size_t max_document, std::shared_ptr<void> token);

  // Calls `done` once: kUnavailable (timeout, connection lost) or kPermissionDenied (the key is not proven).
  void handshake(asio::ssl::stream_base::handshake_type side, Nanoseconds timeout,
                 std::function<void(const Status&)> done);

  // Closes at once; a handshake that is under way fails.
  void abandon() { shut(); }

  void start(OnDocument document, OnClosed closed) override;
  void send(const Json& document) override;
  void close() override;
  std::string peer() const override { return peer_; }
  bool waits() const override { return !large_.empty(); }

 private:
  void read();
  void take_documents();
  Status take(const std::string& text);
  void take_large();
  void write();
  void fail(const Status& why);
  void finish_closing();
  void shut();

  asio::ssl::stream<Tcp::socket> stream_;
  asio::steady_timer timer_;  // of the handshake, then of lingering
  wire::FrameReader reader_;
  std::string large_;  // a document that waits for its turn; nothing is read meanwhile
  size_t max_document_;
  std::shared_ptr<void> token_;
  std::string peer_;
  OnDocument document_;
  OnClosed closed_;
  std::array<char, 16384> buffer_;
  std::deque<std::string> outbox_;
  size_t outbox_bytes_ = 0;
  bool writing_ = false;
  bool closing_ = false;  // no callbacks any more
  bool shut_ = false;     // the socket is closed
  bool sent_all_ = false;
};

}  // namespace gradwire::control
