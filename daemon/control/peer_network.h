// The TCP side of the peers: listens, greets with TLS, connects to other daemons, and knows which addresses
// are its own. On the control thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "config/config.h"
#include "daemon/control/asio_scheduler.h"
#include "daemon/control/node_context.h"
#include "daemon/control/resolver.h"
#include "daemon/control/tls_context.h"
#include "daemon/control/tls_link.h"

namespace gradwire::control {

inline constexpr Nanoseconds kTlsTimeout = std::chrono::seconds(5);
inline constexpr long kMaxPeerLinks = 4096;
// Connections that have not proven the key. They make room for others, the oldest first: a key is proven
// within a few round trips, so that who is silent loses.
inline constexpr size_t kMaxGreetings = 128;
inline constexpr size_t kMaxGreetingsPerSource = 16;

struct HostPort {
  std::string host;
  uint16_t port = 0;  // 0: not given
};
// "host", "host:port", "[::1]:port". kInvalidArgument names what is wrong.
Result<HostPort> parse_rendezvous(const std::string& text);
// Whether this host has the address.
bool is_local_interface(const asio::ip::address& wanted);

class PeerNetwork {
 public:
  using Accept = std::function<void(LinkPtr)>;

  // `lookup` is for tests: of host names.
  PeerNetwork(asio::io_context& context, Scheduler& scheduler, const config::PeerOptions& options,
              Resolver::Lookup lookup = nullptr);
  ~PeerNetwork();

  // With a key: listens. Without one: nothing; jobs stay on this node. Links whose key was proven go to
  // `accept`.
  Status start(Accept accept);
  // Hears of those who do not have the key: source (a numeric address) and why.
  void on_wrong_key(std::function<void(const std::string& source, const std::string& cause)> tell) {
    wrong_key_ = std::move(tell);
  }
  void stop();
  // Connections that have not proven the key.
  size_t greetings() const { return greetings_.size(); }
  bool has_key() const { return contexts_.has_value(); }
  uint16_t port() const { return port_; }  // bound; configured if not listening

  // A link to the daemon at `rendezvous`, for user `uid`; to ourselves it stays inside the process.
  void connect(const std::string& rendezvous, uint32_t uid, Reply<LinkPtr> done);

 private:
  using Tcp = asio::ip::tcp;
  struct Attempt;
  struct Greeting {
    std::string source;
    std::weak_ptr<TlsLink> link;
  };

  void accept_next();
  void accepted(Tcp::socket socket);
  void resolved(const std::shared_ptr<Attempt>& attempt, uint16_t port, const Resolver::Addresses& addresses);
  void handshake(const std::shared_ptr<Attempt>& attempt);
  bool is_ourselves(const Tcp::endpoint& endpoint) const;
  LinkPtr link_to_ourselves();
  void make_room(const std::string& source);
  void crowd_out(std::map<uint64_t, Greeting>::iterator greeting);
  void log_refusal(const std::string& source, const std::string& cause) const;

  asio::io_context& context_;
  Scheduler& scheduler_;
  config::PeerOptions options_;
  Resolver resolver_;
  std::optional<TlsContexts> contexts_;
  uint16_t port_ = 0;
  Accept accept_;
  std::function<void(const std::string& source, const std::string& cause)> wrong_key_;
  Tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  uint64_t last_greeting_ = 0;
  std::map<uint64_t, Greeting> greetings_;                 // the older ones first
  std::shared_ptr<int> links_ = std::make_shared<int>(0);  // the use count: what is open
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gradwire::control
