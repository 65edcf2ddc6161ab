#include "daemon/control/local_server.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/control/log.h"
#include "daemon/control/place.h"
#include "daemon/control/shared_memory.h"
#include "daemon/control/trainer_connection.h"

namespace gradwire::control {
namespace {

using boost::system::error_code;
using Local = asio::local::stream_protocol;

constexpr Nanoseconds kLookAgain = std::chrono::seconds(2);
constexpr Nanoseconds kAcceptAgain = std::chrono::milliseconds(100);

constexpr const char* kSocketRemedy = "check the directory and its permissions, or set another node.socket";
constexpr const char* kDirectoryRemedy =
    "make it for this user (install -d -o USER), or set another node.runtime_dir";

bool somebody_listens(asio::io_context& context, const std::string& path) {
  Local::socket probe(context);
  error_code error;
  probe.open(Local(), error);
  probe.non_blocking(true, error);
  probe.connect(Local::endpoint(path), error);
  return !error || error == asio::error::would_block || error == asio::error::try_again;
}

// A socket that nobody listens on may go; anything else of that name is not ours to remove.
Status clear_place(asio::io_context& context, const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? ok_status() : place_failed("cannot look at " + path, errno, kSocketRemedy);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Status(Code::kInvalidArgument,
                  path + (S_ISDIR(info.st_mode) ? " is a directory" : " exists and is not a socket") +
                      "; remove it or set node.socket");
  }
  if (somebody_listens(context, path)) {
    return Status(Code::kAlreadyExists, "another gradwired listens on " + path);
  }
  return unlink(path.c_str()) == 0 || errno == ENOENT
             ? ok_status()
             : place_failed("cannot remove the old " + path, errno, kSocketRemedy);
}

void set_group(const std::string& path, const std::string& name, uint32_t mode) {
  if (name.empty() || (mode & 0070U) == 0) {
    return;  // the group may do nothing
  }
  const group* found = getgrnam(name.c_str());
  if (found == nullptr) {
    log_warning("socket_group_missing", {{"group", name}, {"remedy", "groupadd --system " + name}});
  } else if (found->gr_gid != getegid() && chown(path.c_str(), static_cast<uid_t>(-1), found->gr_gid) != 0) {
    log_warning("socket_group_failed", {{"group", name}, {"cause", std::strerror(errno)}});
  }
}

// Trainers of all users look for the socket in it, whatever the umask is. One that is there stays as it is.
Status make_runtime_dir(const std::string& directory) {
  constexpr mode_t kMode = 0755;
  struct stat info {};
  if (mkdir(directory.c_str(), kMode) == 0) {
    const wire::UniqueFd made(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    return made.valid() && fchmod(made.get(), kMode) == 0
               ? ok_status()
               : place_failed("cannot set the mode of " + directory, errno, kDirectoryRemedy);
  }
  if (errno != EEXIST) {
    return place_failed("cannot make the runtime directory " + directory, errno, kDirectoryRemedy);
  }
  if (stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Status(Code::kInvalidArgument,
                  directory + " is not a directory; remove it or set another node.runtime_dir");
  }
  return ok_status();
}

}  // namespace

Result<wire::UniqueFd> lock_runtime_dir(const std::string& directory) {
  GRADWIRE_RETURN_IF_ERROR(make_runtime_dir(directory));
  const std::string path = directory + "/gradwired.lock";
  // O_NONBLOCK: a FIFO there must not keep us.
  wire::UniqueFd lock(
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600));
  struct stat info {};
  if (lock.valid() ? fstat(lock.get(), &info) == 0 && !S_ISREG(info.st_mode)
                   : errno == EISDIR || errno == ELOOP || errno == ENXIO) {
    return Status(Code::kInvalidArgument, path + " is not a file; remove it or set another node.runtime_dir");
  }
  if (!lock.valid()) {
    return place_failed("cannot open " + path, errno,
                        "check the directory and its permissions, or set another node.runtime_dir");
  }
  char text[32] = {};
  const ssize_t bytes = pread(lock.get(), text, sizeof(text), 0);
  const std::string_view held(text, static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  if (bytes < 0 || held.size() > 20 || held.find_first_not_of("0123456789\n") != std::string_view::npos) {
    return Status(Code::kInvalidArgument, path +
                                              " holds something else than the pid of a gradwired; remove it "
                                              "or set another node.runtime_dir");
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const std::string pid(held.substr(0, held.find('\n')));
    return Status(Code::kAlreadyExists, "another gradwired (pid " + (pid.empty() ? "unknown" : pid) +
                                            ") is running in " + directory + "; stop it" +
                                            (pid.empty() ? "" : " (kill " + pid + ")") +
                                            " or set another node.runtime_dir");
  }
  const std::string pid = std::to_string(getpid());
  // Whoever can open it can lock it: nobody else.
  if (fchmod(lock.get(), 0600) != 0 || ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return place_failed("cannot write " + path, errno, "see to it that there is room for it");
  }
  return lock;
}

LocalServer::LocalServer(asio::io_context& context, NodeContext& node, Members& members)
    : context_(context),
      node_(node),
      members_(members),
      acceptor_(context),
      retry_(context),
      look_timer_(context) {}

LocalServer::~LocalServer() {
  stop();
  close_all();
}

Status LocalServer::start(const config::NodeOptions& options) {
  options_ = options;
  GRADWIRE_RETURN_IF_ERROR(listen());
  serving_ = true;
  look_after_socket();
  return ok_status();
}

Status LocalServer::listen() {
  const std::string& path = options_.socket;
  GRADWIRE_RETURN_IF_ERROR(clear_place(context_, path));
  error_code error;
  Local::acceptor acceptor(context_);
  acceptor.open(Local(), error);
  if (!error) {
    acceptor.bind(Local::endpoint(path), error);
  }
  if (error) {
    return place_failed("cannot listen on " + path, error.value(), kSocketRemedy);
  }
  set_group(path, options_.socket_group, options_.socket_mode);
  struct stat info {};
  if (chmod(path.c_str(), options_.socket_mode) != 0 || lstat(path.c_str(), &info) != 0) {
    return place_failed("cannot set the mode of " + path, errno, kSocketRemedy);
  }
  refuse_descriptors(acceptor.native_handle());
  acceptor.non_blocking(true, error);
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Status(Code::kUnavailable, "cannot listen on " + path + ": " + error.message());
  }
  end_listener();
  acceptor_ = std::move(acceptor);
  retry_.cancel(error);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  accept_next();
  return ok_status();
}

void LocalServer::stop() {
  serving_ = false;
  error_code ignored;
  retry_.cancel(ignored);
  look_timer_.cancel(ignored);
  end_listener();
  if (inode_ != 0) {
    unlink(options_.socket.c_str());
    inode_ = 0;
  }
}

void LocalServer::close_all() {
  const auto connections = std::move(connections_);
  connections_.clear();
  for (const auto& [id, connection] : connections) {
    connection->close();
  }
}

// Cleaners of /run and /tmp remove sockets that are in use: nobody could join any more.
void LocalServer::look_after_socket() {
  look_timer_.expires_after(kLookAgain);
  look_timer_.async_wait([this, alive = std::weak_ptr<bool>(alive_)](const error_code& stopped) {
    if (stopped || alive.expired() || !serving_) {  // an expiry that was queued is not cancelled
      return;
    }
    struct stat info {};
    const bool there = lstat(options_.socket.c_str(), &info) == 0;
    if (!there || info.st_dev != device_ || info.st_ino != inode_) {
      inode_ = 0;  // what lies there, if anything, is not ours to remove
      const Status status = listen();
      if (status.ok()) {
        log_warning("socket_made_again",
                    {{"socket", options_.socket}, {"cause", there ? "it was replaced" : "it was removed"}});
        complaint_.clear();
      } else if (status.message() != complaint_) {
        complaint_ = status.message();
        log_error("socket_lost", {{"socket", options_.socket}, {"cause", complaint_}});
      }
    }
    look_after_socket();
  });
}

// Not Asio's own accept: what it has accepted when it is cancelled, it closes.
void LocalServer::accept_next() {
  acceptor_.async_wait(asio::socket_base::wait_read, [this, alive = std::weak_ptr<bool>(alive_),
                                                      wait = ++accepting_](const error_code& error) {
    if (!error && !alive.expired() && wait == accepting_) {
      accept_one();
    }
  });
}

void LocalServer::accept_one() {
  if (node_.reaper->waiting() > kMaxClosing) {
    accept_later();
    return;
  }
  const int fd = accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  const bool nobody = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  if (fd < 0 && !nobody) {
    accept_failed(std::strerror(errno));
    return;
  }
  if (fd >= 0) {
    accepted(fd);
  }
  accept_next();
}

void LocalServer::accepted(int fd) {
  const uint64_t id = ++last_id_;
  Local::socket socket(context_);
  error_code error;
  socket.assign(Local(), fd, error);
  if (error) {
    node_.reaper->end_accepted(fd);
    log_warning("trainer_refused", {{"cause", error.message()}});
    return;
  }
  auto connection = std::make_shared<TrainerConnection>(std::move(socket), *this, id);
  Status status =
      connections_.size() < kMaxTrainers
          ? connection->start()
          : Status(Code::kResourceExhausted, std::to_string(kMaxTrainers) + " trainers are connected");
  if (!status.ok()) {
    log_warning("trainer_refused", {{"cause", status.message()}});
    return;
  }
  connections_[id] = std::move(connection);
  make_room();
}

void LocalServer::end_socket(Local::socket& socket) {
  error_code error;
  const int fd = socket.release(error);
  if (!error) {
    node_.reaper->end_accepted(fd);
  }
}

void LocalServer::end_listener() {
  ++accepting_;
  error_code error;
  if (acceptor_.is_open()) {
    const int fd = acceptor_.release(error);
    if (!error) {
      node_.reaper->end_listener(fd);
    }
  }
}

void LocalServer::make_room() {
  struct Unjoined {
    size_t count = 0;
    std::shared_ptr<TrainerConnection> oldest;
  };
  std::map<uint32_t, Unjoined> users;
  size_t all = 0;
  for (const auto& [id, connection] : connections_) {
    if (connection->unjoined()) {
      Unjoined& user = users[connection->uid()];
      ++user.count;
      ++all;
      if (!user.oldest) {
        user.oldest = connection;
      }
    }
  }
  const auto most = std::max_element(users.begin(), users.end(), [](const auto& left, const auto& right) {
    return left.second.count < right.second.count;
  });
  if (most != users.end() && (all > kMaxUnjoined || most->second.count > kMaxUnjoinedPerUser)) {
    log_warning("trainer_refused", {{"uid", std::to_string(most->first)},
                                    {"cause", "too many connections without a part in a job"}});
    most->second.oldest->end("was closed to make room for others");
  }
}

// Out of descriptors, most likely: not a reason to spin.
void LocalServer::accept_failed(const std::string& cause) {
  log_warning("accept_failed", {{"socket", options_.socket},
                                {"cause", cause},
                                {"remedy", "raise LimitNOFILE if descriptors are short"}});
  accept_later();
}

void LocalServer::accept_later() {
  retry_.expires_after(kAcceptAgain);
  retry_.async_wait([this, alive = std::weak_ptr<bool>(alive_)](const error_code& stopped) {
    if (!stopped && !alive.expired() && serving_) {
      accept_next();
    }
  });
}

void LocalServer::forget(uint64_t id) {
  connections_.erase(id);
}

}  // namespace gradwire::control
