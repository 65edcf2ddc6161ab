#include "daemon/control/socket_reaper.h"

#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "daemon/engine/plain_bytes.h"

namespace gradwire::control {
namespace {

// By default it is ignored, so that nobody minds it.
constexpr int kInterrupt = SIGURG;
constexpr long kPatience = 1'000'000;  // ns, between one interruption of a close and the next

// Interrupts the thread that made it again and again while it is armed. Once is not enough: a signal that
// comes before the waiting begins is gone by then.
class Interrupter {
 public:
  Interrupter() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(kInterrupt, &action, nullptr);  // without SA_RESTART
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, kInterrupt);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kInterrupt;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    made_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
  }
  ~Interrupter() {
    if (made_) {
      timer_delete(timer_);
    }
  }
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;
  void arm(bool on) {
    if (made_) {  // where it could not be made, the bounds on threads are what is left
      const timespec patience{0, on ? kPatience : 0};
      const itimerspec times{patience, patience};
      timer_settime(timer_, 0, &times, nullptr);
    }
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

uint32_t user_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.uid : geteuid();
}

// Nothing is added to it any more, and only what has descriptors is left.
bool empty_out(int fd) {
  shutdown(fd, SHUT_RDWR);
  engine::keep_urgent_in_line(fd);
  std::array<char, 16384> bytes;
  while (engine::take_plain(fd, bytes).kind == engine::Taken::Kind::kBytes) {
  }
  int left = 0;
  return ioctl(fd, FIONREAD, &left) == 0 && left == 0;
}

}  // namespace

struct SocketReaper::State : std::enable_shared_from_this<State> {
  struct Socket {
    int fd = -1;
    Token token;
  };
  struct User {
    std::deque<Socket> waiting;
    size_t closing = 0;  // threads
  };

  void add(int fd, uint32_t uid, Token token) {
    const std::lock_guard lock(mutex);
    users[uid].waiting.push_back({fd, std::move(token)});
    ++sockets;
    if (idle != 0) {
      wake.notify_one();
    } else {
      call_help();
    }
  }
  // The next user in turn who has something to close and may have one more thread.
  std::map<uint32_t, User>::iterator next_user() {
    auto user = users.upper_bound(last_user);
    for (size_t looked = 0; looked < users.size(); ++looked, ++user) {
      user = user == users.end() ? users.begin() : user;
      if (!user->second.waiting.empty() && user->second.closing < kThreadsPerUser) {
        return user;
      }
    }
    return users.end();
  }
  // One more thread, if there is something for it to do. With the mutex.
  void call_help() {
    if (idle == 0 && threads < kThreads && next_user() != users.end()) {
      (void)add_thread(false);  // without one, those that are there do it later
    }
  }
  bool add_thread(bool stays) {
    try {
      std::thread([self = shared_from_this(), stays] { self->run(stays); }).detach();
      ++threads;
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }
  void run(bool stays) {
    pthread_setname_np(pthread_self(), "gw-reaper");
    Interrupter interrupter;
    std::unique_lock lock(mutex);
    while (true) {
      const auto found = next_user();
      if (found != users.end()) {
        close_next(found, interrupter, lock);
      } else if (stays && !over) {
        ++idle;
        wake.wait(lock);
        --idle;
      } else {
        --threads;
        return;
      }
    }
  }
  void close_next(std::map<uint32_t, User>::iterator found, Interrupter& interrupter,
                  std::unique_lock<std::mutex>& lock) {
    User& user = found->second;  // stays: `closing` is not 0
    last_user = found->first;
    Socket socket = std::move(user.waiting.front());
    user.waiting.pop_front();
    ++user.closing;
    call_help();
    lock.unlock();
    interrupter.arm(true);
    close(socket.fd);
    interrupter.arm(false);
    socket.token.reset();
    lock.lock();
    --sockets;
    if (--user.closing == 0 && user.waiting.empty()) {
      users.erase(found);
    }
  }

  Charge charge;
  Close close;
  std::mutex mutex;
  std::condition_variable wake;
  std::map<uint32_t, User> users;
  uint32_t last_user = 0;
  size_t threads = 0, idle = 0, sockets = 0;
  bool over = false;
};

SocketReaper::SocketReaper(Charge charge, Close close) : state_(std::make_shared<State>()) {
  state_->charge = std::move(charge);
  state_->close = close ? std::move(close) : Close([](int fd) { ::close(fd); });
}

SocketReaper::~SocketReaper() {
  const std::lock_guard lock(state_->mutex);
  state_->over = true;
  state_->wake.notify_all();
}

Status SocketReaper::start() {
  const std::lock_guard lock(state_->mutex);
  return state_->add_thread(true)
             ? ok_status()
             : Status(Code::kResourceExhausted,
                      "no thread that closes the trainers' sockets is to be had; raise TasksMax");
}

void SocketReaper::end(int fd, uint32_t uid) {
  const bool empty = empty_out(fd);
  state_->add(fd, uid, empty || !state_->charge ? nullptr : state_->charge(uid));
}

void SocketReaper::end_accepted(int fd) {
  end(fd, user_of(fd));
}

void SocketReaper::end_listener(int fd) {
  shutdown(fd, SHUT_RDWR);  // nobody connects any more
  int waiting = -1;
  while ((waiting = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0 || errno == EINTR ||
         errno == ECONNABORTED) {
    if (waiting >= 0) {
      end_accepted(waiting);
    }
  }
  state_->add(fd, geteuid(), nullptr);  // where descriptors are short, some are left in it
}

size_t SocketReaper::waiting() const {
  const std::lock_guard lock(state_->mutex);
  return state_->sockets;
}

}  // namespace gradwire::control
