#include "daemon/control/peer_network.h"

#include <algorithm>

#include "config/psk.h"
#include "daemon/control/log.h"
#include "daemon/control/place.h"

namespace gradwire::control {
namespace {

using boost::system::error_code;

// Whoever has one IPv6 address has a /64 of them.
std::string source_text(const asio::ip::address& address) {
  if (!address.is_v6()) {
    return address.to_string();
  }
  if (address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::make_address_v6(bytes).to_string() + "/64";
}

}  // namespace

struct PeerNetwork::Attempt {
  Attempt(asio::io_context& context, std::string text, Reply<LinkPtr> reply)
      : rendezvous(std::move(text)), done(std::move(reply)), socket(context), timer(context) {}
  void finish(const Result<LinkPtr>& result) {
    error_code ignored;
    timer.cancel(ignored);
    if (done) {
      const auto reply = std::move(done);
      done = nullptr;
      reply(result);
    }
  }
  std::string rendezvous;
  Reply<LinkPtr> done;
  Tcp::socket socket;
  asio::steady_timer timer;
};

PeerNetwork::PeerNetwork(asio::io_context& context, Scheduler& scheduler, const config::PeerOptions& options,
                         Resolver::Lookup lookup)
    : context_(context),
      scheduler_(scheduler),
      options_(options),
      resolver_(scheduler, std::move(lookup)),
      port_(options.port),
      acceptor_(context),
      retry_(context) {}

PeerNetwork::~PeerNetwork() = default;

Status PeerNetwork::start(Accept accept) {
  accept_ = std::move(accept);
  if (options_.key_file.empty()) {
    return ok_status();
  }
  Result<std::vector<std::byte>> key = config::load_psk(options_.key_file);
  GRADWIRE_RETURN_IF_ERROR(key.status().with_context("peers.key_file"));
  Result<TlsContexts> contexts = make_tls_contexts(*key);
  std::fill(key->begin(), key->end(), std::byte{0});
  GRADWIRE_RETURN_IF_ERROR(contexts.status());
  contexts_ = std::move(*contexts);
  error_code error;
  const auto address = asio::ip::make_address(options_.listen, error);
  const Tcp::endpoint endpoint(address, options_.port);
  if (!error) {
    acceptor_.open(endpoint.protocol(), error);
  }
  if (!error) {
    acceptor_.set_option(Tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor_.bind(endpoint, error);
  }
  if (!error) {
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    return place_failed("cannot listen on " + options_.listen + " port " + std::to_string(options_.port),
                        error.value(),
                        "set peers.listen to an address of this host and peers.port to a free port");
  }
  port_ = acceptor_.local_endpoint(error).port();
  accept_next();
  return ok_status();
}

void PeerNetwork::stop() {
  error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel(ignored);
  const auto greetings = std::move(greetings_);
  greetings_.clear();
  for (const auto& [id, greeting] : greetings) {
    if (const auto link = greeting.link.lock()) {
      link->abandon();
    }
  }
}

void PeerNetwork::accept_next() {
  acceptor_.async_accept(
      [this, alive = std::weak_ptr<bool>(alive_)](const error_code& error, Tcp::socket socket) {
        if (alive.expired() || !acceptor_.is_open()) {
          return;
        }
        if (!error) {
          accepted(std::move(socket));
          accept_next();
          return;
        }
        // Out of descriptors, most likely: not a reason to spin.
        log_warning("accept_failed", {{"port", std::to_string(port_)},
                                      {"cause", error.message()},
                                      {"remedy", "raise LimitNOFILE if descriptors are short"}});
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this, alive](const error_code& stopped) {
          if (!alive.expired() && !stopped) {
            accept_next();
          }
        });
      });
}

void PeerNetwork::accepted(Tcp::socket socket) {
  error_code error;
  const auto remote = socket.remote_endpoint(error);
  if (error) {
    return;  // it has gone already
  }
  const std::string source = source_text(remote.address());
  if (links_.use_count() > kMaxPeerLinks) {
    log_refusal(source, std::to_string(kMaxPeerLinks) + " connections are open");
    return;
  }
  make_room(source);
  const auto link =
      std::make_shared<TlsLink>(std::move(socket), *contexts_->server, options_.max_document, links_);
  const uint64_t greeting = ++last_greeting_;
  greetings_[greeting] = {source, link};
  link->handshake(asio::ssl::stream_base::server, kTlsTimeout,
                  [this, alive = std::weak_ptr<bool>(alive_), link, source, greeting](const Status& status) {
                    if (alive.expired() || greetings_.erase(greeting) == 0) {
                      return;
                    }
                    if (status.ok()) {
                      accept_(link);
                    } else {
                      log_refusal(source, status.message());
                      if (wrong_key_ && status.code() == Code::kPermissionDenied) {
                        wrong_key_(source, status.message());
                      }
                    }
                  });
}

// For one more connection from `source`.
void PeerNetwork::make_room(const std::string& source) {
  std::map<std::string, size_t> counts;
  for (const auto& [id, greeting] : greetings_) {
    ++counts[greeting.source];
  }
  std::string crowd = source;
  if (counts[source] < kMaxGreetingsPerSource) {
    if (greetings_.size() < kMaxGreetings) {
      return;
    }
    for (const auto& [each, count] : counts) {
      crowd = count > counts[crowd] ? each : crowd;
    }
  }
  auto oldest = std::find_if(greetings_.begin(), greetings_.end(),
                             [&crowd](const auto& entry) { return entry.second.source == crowd; });
  crowd_out(oldest == greetings_.end() ? greetings_.begin() : oldest);
}

void PeerNetwork::crowd_out(std::map<uint64_t, Greeting>::iterator greeting) {
  log_refusal(greeting->second.source,
              "too many connections that do not prove the key; the oldest was closed");
  const auto link = greeting->second.link.lock();
  greetings_.erase(greeting);
  if (link) {
    link->abandon();
  }
}

// How often is limited for each source and in all (log.h): the first two fields are the key.
void PeerNetwork::log_refusal(const std::string& source, const std::string& cause) const {
  log_warning("peer_refused", {{"source", source}, {"port", std::to_string(port_)}, {"cause", cause}});
}

bool PeerNetwork::is_ourselves(const Tcp::endpoint& endpoint) const {
  if (port_ != 0 && endpoint.port() != port_) {
    return false;
  }
  error_code error;
  const auto listen = asio::ip::make_address(options_.listen, error);
  if (!error && !listen.is_unspecified()) {
    return endpoint.address() == listen;
  }
  return is_local_interface(endpoint.address());
}

LinkPtr PeerNetwork::link_to_ourselves() {
  auto [ours, theirs] = make_local_links(scheduler_);
  accept_(theirs);
  return ours;
}

void PeerNetwork::connect(const std::string& rendezvous, uint32_t uid, Reply<LinkPtr> done) {
  if (rendezvous.empty()) {
    done(link_to_ourselves());
    return;
  }
  const Result<HostPort> parsed = parse_rendezvous(rendezvous);
  if (!parsed.ok()) {
    done(parsed.status());
    return;
  }
  auto attempt = std::make_shared<Attempt>(context_, rendezvous, std::move(done));
  attempt->timer.expires_after(kTlsTimeout);
  attempt->timer.async_wait([attempt](const error_code& error) {
    if (!error) {
      error_code ignored;
      attempt->socket.close(ignored);
      attempt->finish(Status(Code::kUnavailable, attempt->rendezvous + " does not answer"));
    }
  });
  const uint16_t port = parsed->port != 0 ? parsed->port : port_;
  error_code not_digits;
  const auto address = asio::ip::make_address(parsed->host, not_digits);
  if (!not_digits) {
    resolved(attempt, port, {address});
    return;
  }
  resolver_.resolve(uid, parsed->host, [this, attempt, port](const Result<Resolver::Addresses>& addresses) {
    if (!attempt->done) {
      return;
    }
    if (!addresses.ok()) {
      attempt->finish(Status(Code::kUnavailable, "the host of the rendezvous '" + attempt->rendezvous +
                                                     "' is not found: " + addresses.status().message()));
      return;
    }
    resolved(attempt, port, *addresses);
  });
}

void PeerNetwork::resolved(const std::shared_ptr<Attempt>& attempt, uint16_t port,
                           const Resolver::Addresses& addresses) {
  const auto endpoints = std::make_shared<std::vector<Tcp::endpoint>>();
  for (const auto& address : addresses) {
    endpoints->emplace_back(address, port);
    if (is_ourselves(endpoints->back())) {
      attempt->finish(link_to_ourselves());
      return;
    }
  }
  if (!contexts_) {
    attempt->finish(Status(Code::kInvalidArgument,
                           "the rendezvous " + attempt->rendezvous +
                               " is another daemon, and this one has no key: set peers.key_file to the same "
                               "key on all nodes"));
    return;
  }
  asio::async_connect(
      attempt->socket, *endpoints,
      [this, attempt, endpoints, alive = std::weak_ptr<bool>(alive_)](const error_code& error,
                                                                      const Tcp::endpoint&) {
        if (alive.expired() || !attempt->done) {
          return;
        }
        if (error) {
          attempt->finish(Status(Code::kUnavailable, attempt->rendezvous + ": " + error.message()));
          return;
        }
        handshake(attempt);
      });
}

void PeerNetwork::handshake(const std::shared_ptr<Attempt>& attempt) {
  error_code ignored;
  attempt->timer.cancel(ignored);  // the link has its own
  const auto link = std::make_shared<TlsLink>(std::move(attempt->socket), *contexts_->client,
                                              options_.max_document, links_);
  link->handshake(asio::ssl::stream_base::client, kTlsTimeout, [attempt, link](const Status& status) {
    if (status.ok()) {
      attempt->finish(LinkPtr(link));
    } else {
      attempt->finish(status);
    }
  });
}

}  // namespace gradwire::control
