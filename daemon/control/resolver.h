// Resolver: looks host names up without making anybody wait. The system's lookup can only be called and
// waited for, so that each has a thread of its own; threads are few in all and fewer for one user, and
// whoever wants more is told so at once. They are never joined: a thread whose lookup nobody waits for any
// more, or whose Resolver is gone, ends by itself and touches only what is shared.
#pragma once

#include <utility>
// Asio needs <utility> first under g++ 12.
#include <boost/asio/ip/address.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/control/node_context.h"

namespace gradwire::control {

class Resolver {
 public:
  static constexpr size_t kLookups = 64;
  static constexpr size_t kLookupsPerUser = 8;
  static constexpr size_t kRepliesPerLookup = 64;

  using Addresses = std::vector<boost::asio::ip::address>;  // in the order in which to try them
  // Called on a thread of its own; may take any time.
  using Lookup = std::function<Result<Addresses>(const std::string& host)>;

  // `lookup` is for tests; without it, the system's.
  explicit Resolver(Scheduler& scheduler, Lookup lookup = nullptr);
  ~Resolver();  // waits for nothing; replies that are outstanding never come
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // On the scheduler's thread, and so comes the reply, never from inside this call. The same user's calls for
  // the same host share a lookup. kUnavailable: the name is not found, or too many are looked up already.
  void resolve(uint32_t uid, const std::string& host, Reply<Addresses> done);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// getaddrinfo().
Result<Resolver::Addresses> look_up(const std::string& host);

}  // namespace gradwire::control
