// SocketReaper: closes the Unix sockets whose other end a trainer holds. Where the kernel lets trainers send
// descriptors (before Linux 6.16), such a socket may hold the last copy of something that takes long to
// close, a connection that lingers, say; and on old kernels the close of any Unix socket may have to clear
// away what others have left in theirs. So none of them is closed on the control or the engine thread.
//
// A close that waits is interrupted by a signal, which ends all waiting that can be interrupted. What waits
// on regardless keeps a thread: few in all, fewer for one user, and users take turns. Each socket with
// something left in it is charged to its user until it is closed. No thread is ever joined: they hold only
// what is shared, and end by themselves. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "config/base/result.h"

namespace gradwire::control {

class SocketReaper {
 public:
  static constexpr size_t kThreads = 8;
  static constexpr size_t kThreadsPerUser = 2;

  using Token = std::shared_ptr<void>;
  using Charge = std::function<Token(uint32_t uid)>;
  using Close = std::function<void(int fd)>;

  // `charge` gives what is kept until a socket with something in it is closed; `close` is for tests.
  explicit SocketReaper(Charge charge = nullptr, Close close = nullptr);
  ~SocketReaper();
  SocketReaper(const SocketReaper&) = delete;
  SocketReaper& operator=(const SocketReaper&) = delete;

  // One thread that stays: sockets are closed even when threads are short. Without it, threads come as
  // needed.
  Status start();

  // The other side sees the end at once. Takes the descriptor over; `uid` is charged.
  void end(int fd, uint32_t uid);
  // Of a socket that was accepted: the user who made the connection is charged.
  void end_accepted(int fd);
  // Of a socket that is listened on, and of those who wait to be accepted.
  void end_listener(int fd);
  // Sockets that are not closed yet.
  size_t waiting() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gradwire::control
