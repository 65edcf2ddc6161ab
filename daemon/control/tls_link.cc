#include "daemon/control/tls_link.h"

#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <string_view>

#include "daemon/control/fields.h"
#include "daemon/control/large_documents.h"

namespace gradwire::control {
namespace {

using boost::system::error_code;

constexpr Nanoseconds kLinger = std::chrono::seconds(1);

std::string endpoint_text(const asio::ip::tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) {
    return "an unknown address";
  }
  const std::string address = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(endpoint.port());
}

// After a break the first retransmission must come well within peer_timeout; TCP doubles its pauses.
// Heartbeats are a thin stream, for which Linux keeps the pauses as they are: where asked to, and where the
// congestion control has a slow-start threshold (BBR has none). What the kernel does not know is left as it
// was.
void retransmit_soon(int socket) {
  constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS of Linux 6.15
  constexpr int kLongestPauseMs = 1000;
  constexpr int kOn = 1;
  constexpr std::string_view kCongestion = "reno";  // always there, allowed to everybody
  setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kCongestion.data(), kCongestion.size());
  setsockopt(socket, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &kOn, sizeof(kOn));
  setsockopt(socket, IPPROTO_TCP, kRtoMaxMs, &kLongestPauseMs, sizeof(kLongestPauseMs));
}

bool is_end(const error_code& error) {
  return error == asio::error::eof || error == asio::ssl::error::stream_truncated;
}

// The first bytes of the other side are none of a TLS 1.3 handshake: HTTP, SSH, a scanner, old TLS.
bool is_no_tls(int reason) {
  switch (reason) {
    case SSL_R_BAD_RECORD_TYPE:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_LENGTH_MISMATCH:
    case SSL_R_LENGTH_TOO_LONG:
    case SSL_R_LENGTH_TOO_SHORT:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_RECORD_LENGTH_MISMATCH:
    case SSL_R_RECORD_TOO_SMALL:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_WRONG_VERSION_NUMBER:
      return true;
    default:
      return false;
  }
}

Status handshake_failure(const error_code& error, bool timed_out, const std::string& peer) {
  if (timed_out) {
    return Status(Code::kUnavailable, peer + " did not finish the TLS handshake in time");
  }
  const bool of_tls = error.category() == asio::error::get_ssl_category();
  if (of_tls && is_no_tls(ERR_GET_REASON(static_cast<unsigned long>(error.value())))) {
    return Status(Code::kCorrupt, peer + " does not speak TLS 1.3 (" + error.message() +
                                      "), so it is no gradwired; peers.port is for gradwired alone, and a "
                                      "rendezvous must name it");
  }
  if (of_tls) {
    return Status(Code::kPermissionDenied,
                  peer + " and this daemon do not have the same key (TLS: " + error.message() +
                      "); peers.key_file must hold the same key on all nodes");
  }
  return Status(Code::kUnavailable, peer + " ended the TLS handshake: " + error.message());
}

}  // namespace

TlsLink::TlsLink(Tcp::socket socket, asio::ssl::context& context, size_t max_document,
                 std::shared_ptr<void> token)
    : stream_(std::move(socket), context),
      timer_(stream_.get_executor()),
      reader_(max_document),
      max_document_(max_document),
      token_(std::move(token)),
      peer_(endpoint_text(stream_.next_layer())) {
  error_code ignored;
  stream_.next_layer().set_option(Tcp::no_delay(true), ignored);
  retransmit_soon(stream_.next_layer().native_handle());
}

void TlsLink::handshake(asio::ssl::stream_base::handshake_type side, Nanoseconds timeout,
                        std::function<void(const Status&)> done) {
  auto timed_out = std::make_shared<bool>(false);
  timer_.expires_after(timeout);
  timer_.async_wait([weak = weak_from_this(), timed_out](const error_code& error) {
    if (const auto self = weak.lock(); self && !error) {
      *timed_out = true;
      self->shut();
    }
  });
  stream_.async_handshake(side, [self = shared_from_this(), side, timed_out,
                                 done = std::move(done)](const error_code& error) {
    self->timer_.cancel();
    if (error) {
      done(handshake_failure(error, *timed_out, self->peer_));
      self->shut();
      return;
    }
    // Proof that the key was used, not something else that both sides can do.
    if (side == asio::ssl::stream_base::client && SSL_session_reused(self->stream_.native_handle()) != 1) {
      done(Status(Code::kPermissionDenied,
                  self->peer_ + " did not prove that it has the key of peers.key_file"));
      self->shut();
      return;
    }
    done(ok_status());
  });
}

void TlsLink::start(OnDocument document, OnClosed closed) {
  document_ = std::move(document);
  closed_ = std::move(closed);
  read();
}

void TlsLink::read() {
  stream_.async_read_some(
      asio::buffer(buffer_), [self = shared_from_this()](const error_code& error, size_t bytes) {
        if (error) {
          self->fail(Status(Code::kUnavailable,
                            is_end(error) ? "connection closed" : "connection lost: " + error.message()));
          return;
        }
        if (!self->closing_) {
          (void)self->reader_.feed(self->buffer_.data(), bytes);  // take_documents() asks for the status
        }
        self->take_documents();
      });
}

// What has come, up to a large document, which waits for its turn; and then reads on.
void TlsLink::take_documents() {
  Status status;
  while (status.ok() && !closing_ && large_.empty()) {
    auto text = reader_.next();
    if (!text) {
      status = reader_.status();
      break;
    }
    if (LargeDocuments::is_large(*text)) {
      large_ = std::move(*text);
      LargeDocuments::of(stream_.get_executor()).wait([self = shared_from_this()] { self->take_large(); });
    } else {
      status = take(*text);
    }
  }
  if (!status.ok()) {
    fail(status);
  } else if (!shut_ && large_.empty()) {
    read();  // while closing too: unread bytes would make the kernel drop what we sent last
  }
}

Status TlsLink::take(const std::string& text) {
  const Result<Json> document = parse_document(text);
  if (document.ok()) {
    document_(*document);
  }
  return document.status();
}

void TlsLink::take_large() {
  const std::string text = std::exchange(large_, {});
  if (const Status status = closing_ ? ok_status() : take(text); !status.ok()) {
    fail(status);
  } else {
    take_documents();
  }
}

void TlsLink::send(const Json& document) {
  if (closing_ || shut_) {
    return;
  }
  const std::string text = write_document(document);
  if (text.size() > max_document_ || outbox_bytes_ > 4 * max_document_) {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      self->fail(Status(Code::kUnavailable,
                        "it does not read what is sent, or a document exceeds peers.max_document"));
    });
    return;
  }
  outbox_.push_back(wire::encode_frame(text));
  outbox_bytes_ += outbox_.back().size();
  if (!writing_) {
    write();
  }
}

void TlsLink::write() {
  writing_ = true;
  asio::async_write(stream_, asio::buffer(outbox_.front()),
                    [self = shared_from_this()](const error_code& error, size_t) {
                      self->writing_ = false;
                      if (error) {
                        self->fail(Status(Code::kUnavailable, "connection lost: " + error.message()));
                        return;
                      }
                      self->outbox_bytes_ -= self->outbox_.front().size();
                      self->outbox_.pop_front();
                      if (!self->outbox_.empty()) {
                        self->write();
                      } else if (self->closing_) {
                        self->finish_closing();
                      }
                    });
}

void TlsLink::close() {
  if (closing_) {
    return;
  }
  closing_ = true;
  // The callbacks may be running at this moment: they are released later.
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    self->document_ = nullptr;
    self->closed_ = nullptr;
  });
  timer_.expires_after(kLinger);
  timer_.async_wait([self = shared_from_this()](const error_code&) { self->shut(); });
  if (!writing_) {
    finish_closing();
  }
}

void TlsLink::finish_closing() {
  if (!shut_ && !sent_all_) {
    sent_all_ = true;
    error_code ignored;
    stream_.next_layer().shutdown(Tcp::socket::shutdown_send, ignored);
  }
}

void TlsLink::fail(const Status& why) {
  shut();
  if (!closing_ && closed_) {
    closing_ = true;
    const OnClosed closed = std::move(closed_);
    closed_ = nullptr;
    closed(why);
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->document_ = nullptr; });
  }
}

void TlsLink::shut() {
  if (!shut_) {
    shut_ = true;
    error_code ignored;
    timer_.cancel(ignored);
    stream_.next_layer().close(ignored);
    token_.reset();
  }
}

}  // namespace gradwire::control
