// What the service manager is told (sd_notify(3)): one datagram a message to the socket that it named. Never
// waits: a manager that does not read in time must not stop the control thread, which is why this is not
// libsystemd's sd_notify. On the control thread.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <deque>
#include <string>
#include <string_view>

#include "client/wire/unique_fd.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

class Notifier {
 public:
  // From $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID; without them nothing is ever sent.
  Notifier();

  // READY=1, RELOADING=1 and STOPPING=1 must arrive: what found no room is sent by the next retry(), in
  // order.
  void ready();
  void reloading();
  void stopping();
  void retry();
  // A line for people, sent when it has changed. Whatever it holds, it is one line.
  void status(const std::string& text);
  void watchdog();  // dropped if there is no room

  // How often the manager wants to hear watchdog(); 0: not at all.
  Nanoseconds watchdog_limit() const { return watchdog_limit_; }

 private:
  void must_arrive(std::string message);
  bool send(std::string_view message);

  wire::UniqueFd socket_;
  sockaddr_un address_{};
  socklen_t address_bytes_ = 0;
  Nanoseconds watchdog_limit_{};
  std::deque<std::string> waiting_;  // messages that found no room, oldest first
  std::string status_;
};

}  // namespace gradwire::control
