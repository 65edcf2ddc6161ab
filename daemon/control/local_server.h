// The Unix socket that trainers of this node connect to. One daemon per runtime directory: a lock file tells
// a living daemon from what a dead one left behind. On the control thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
// Asio needs <utility> first under g++ 12.
#include <boost/asio/local/stream_protocol.hpp>

#include "config/config.h"
#include "daemon/control/asio_scheduler.h"
#include "daemon/control/members.h"

namespace gradwire::control {

inline constexpr size_t kMaxTrainers = 4096;

// Held for the daemon's life. kAlreadyExists: another daemon lives in that directory.
Result<wire::UniqueFd> lock_runtime_dir(const std::string& directory);

class TrainerConnection;

class LocalServer {
 public:
  LocalServer(asio::io_context& context, NodeContext& node, Members& members);
  ~LocalServer();

  // Replaces what a dead daemon left; kAlreadyExists if something still listens there.
  Status start(const config::NodeOptions& options);
  // Removes the socket; trainers that are connected stay until close_all().
  void stop();
  void close_all();
  size_t connections() const { return connections_.size(); }

 private:
  friend class TrainerConnection;
  void accept_next();
  void forget(uint64_t id);

  asio::io_context& context_;
  NodeContext& node_;
  Members& members_;
  asio::local::stream_protocol::acceptor acceptor_;
  asio::steady_timer retry_;
  std::string path_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::shared_ptr<TrainerConnection>> connections_;
};

}  // namespace gradwire::control
