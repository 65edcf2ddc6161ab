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
#include "daemon/control/trainer_buffers.h"

namespace gradwire::control {

// Connections. Those without a part in a job are few, and make room for others: the oldest of the user who
// has most of them goes first.
inline constexpr size_t kMaxTrainers = 4096;
inline constexpr size_t kMaxUnjoined = 1024;
inline constexpr size_t kMaxUnjoinedPerUser = 256;
// Ended connections that are not closed yet: as long as there are more, nobody is accepted.
inline constexpr size_t kMaxClosing = 1024;

// Held for the daemon's life. kAlreadyExists: another daemon lives in that directory.
Result<wire::UniqueFd> lock_runtime_dir(const std::string& directory);

class TrainerConnection;

class LocalServer {
 public:
  LocalServer(asio::io_context& context, NodeContext& node, Members& members);
  ~LocalServer();

  // Replaces what a dead daemon left; kAlreadyExists if something still listens there. A socket that somebody
  // removes is made again.
  Status start(const config::NodeOptions& options);
  // Removes the socket; trainers that are connected stay until close_all().
  void stop();
  void close_all();
  size_t connections() const { return connections_.size(); }  // for tests

 private:
  friend class TrainerConnection;
  Status listen();
  void accept_next();
  void accept_one();
  void accepted(int fd);
  void accept_later();
  void end_listener();
  // What a trainer may have sent is not closed on this thread.
  void end_socket(asio::local::stream_protocol::socket& socket);
  void make_room();
  void accept_failed(const std::string& cause);
  void look_after_socket();
  void forget(uint64_t id);

  asio::io_context& context_;
  NodeContext& node_;
  Members& members_;
  config::NodeOptions options_;
  asio::local::stream_protocol::acceptor acceptor_;
  asio::steady_timer retry_;
  asio::steady_timer look_timer_;
  uint64_t device_ = 0, inode_ = 0;  // of the socket's file; 0: there is none of ours
  std::string complaint_;            // the last one about the socket's file
  uint64_t last_id_ = 0;
  uint64_t accepting_ = 0;  // which wait for somebody to accept counts
  bool serving_ = false;    // between start() and stop()
  TrainerBuffers buffers_;
  std::map<uint64_t, std::shared_ptr<TrainerConnection>> connections_;  // the older ones first
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gradwire::control
