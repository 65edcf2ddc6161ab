#include "daemon/control/local_server.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/control/log.h"
#include "daemon/control/trainer_connection.h"

namespace gradwire::control {
namespace {

using boost::system::error_code;
using Local = asio::local::stream_protocol;

Status failed(const std::string& what) {
  return Status(Code::kUnavailable, what + ": " + std::strerror(errno));
}

bool somebody_listens(asio::io_context& context, const std::string& path) {
  Local::socket probe(context);
  error_code error;
  probe.connect(Local::endpoint(path), error);
  return !error;
}

// A socket that nobody listens on may go; anything else of that name is not ours to remove.
Status clear_place(asio::io_context& context, const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? ok_status() : failed(path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Status(Code::kAlreadyExists, path + " exists and is not a socket; remove it or set node.socket");
  }
  if (somebody_listens(context, path)) {
    return Status(Code::kAlreadyExists, "another gradwired listens on " + path);
  }
  return unlink(path.c_str()) == 0 || errno == ENOENT ? ok_status() : failed("cannot remove the old " + path);
}

void set_group(const std::string& path, const std::string& name) {
  if (name.empty()) {
    return;
  }
  const group* found = getgrnam(name.c_str());
  if (found == nullptr) {
    log_warning("socket_group_missing", {{"group", name}, {"remedy", "groupadd --system " + name}});
  } else if (found->gr_gid != getegid() && chown(path.c_str(), static_cast<uid_t>(-1), found->gr_gid) != 0) {
    log_warning("socket_group_failed", {{"group", name}, {"cause", std::strerror(errno)}});
  }
}

}  // namespace

Result<wire::UniqueFd> lock_runtime_dir(const std::string& directory) {
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return failed("cannot make the runtime directory " + directory);
  }
  const std::string path = directory + "/gradwired.lock";
  wire::UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock.valid()) {
    return failed("cannot open " + path);
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    const ssize_t bytes = pread(lock.get(), pid, sizeof(pid) - 1, 0);
    return Status(Code::kAlreadyExists,
                  "another gradwired (pid " + (bytes > 0 ? clean(pid, sizeof(pid)) : std::string("unknown")) +
                      ") is running in " + directory + "; stop it or set node.runtime_dir");
  }
  const std::string pid = std::to_string(getpid());
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return failed("cannot write " + path);
  }
  return lock;
}

LocalServer::LocalServer(asio::io_context& context, NodeContext& node, Members& members)
    : context_(context), node_(node), members_(members), acceptor_(context), retry_(context) {}

LocalServer::~LocalServer() {
  stop();
}

Status LocalServer::start(const config::NodeOptions& options) {
  GRADWIRE_RETURN_IF_ERROR(clear_place(context_, options.socket));
  error_code error;
  acceptor_.open(Local(), error);
  if (!error) {
    acceptor_.bind(Local::endpoint(options.socket), error);
  }
  if (error) {
    return Status(Code::kUnavailable, "cannot listen on " + options.socket + ": " + error.message());
  }
  path_ = options.socket;
  set_group(path_, options.socket_group);
  if (chmod(path_.c_str(), options.socket_mode) != 0) {
    return failed("cannot set the mode of " + path_);
  }
  acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Status(Code::kUnavailable, "cannot listen on " + options.socket + ": " + error.message());
  }
  accept_next();
  return ok_status();
}

void LocalServer::stop() {
  error_code ignored;
  retry_.cancel(ignored);
  acceptor_.close(ignored);
  if (!path_.empty()) {
    unlink(path_.c_str());
    path_.clear();
  }
}

void LocalServer::close_all() {
  const auto connections = std::move(connections_);
  connections_.clear();
  for (const auto& [id, connection] : connections) {
    connection->close();
  }
}

void LocalServer::accept_next() {
  acceptor_.async_accept([this](const error_code& error, Local::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) {
      return;
    }
    if (!error && connections_.size() < kMaxTrainers) {
      const uint64_t id = ++last_id_;
      auto connection = std::make_shared<TrainerConnection>(std::move(socket), *this, id);
      if (const Status status = connection->start(); status.ok()) {
        connections_[id] = connection;
      } else {
        log_warning("trainer_refused", {{"cause", status.message()}});
      }
    }
    if (!error) {
      accept_next();
      return;
    }
    // Out of descriptors, most likely: not a reason to spin.
    log_warning("accept_failed", {{"cause", error.message()}});
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](const error_code& stopped) {
      if (!stopped) {
        accept_next();
      }
    });
  });
}

void LocalServer::forget(uint64_t id) {
  connections_.erase(id);
}

}  // namespace gradwire::control
