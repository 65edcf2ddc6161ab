#include "daemon/control/resolver.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

namespace gradwire::control {
namespace {

namespace ip = boost::asio::ip;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

Status too_many(const std::string& whose, size_t limit) {
  return Status(Code::kUnavailable, whose + std::to_string(limit) +
                                        " host names looked up at once, which is the limit; name the host of "
                                        "the rendezvous by its address, or see why the name service is slow");
}

}  // namespace

struct Resolver::State : std::enable_shared_from_this<State> {
  using Key = std::pair<uint32_t, std::string>;

  // With the mutex.
  Status begin(const Key& key) {
    const auto of_user = std::count_if(waiting.begin(), waiting.end(),
                                       [&key](const auto& entry) { return entry.first.first == key.first; });
    if (static_cast<size_t>(of_user) >= kLookupsPerUser) {
      return too_many("user " + std::to_string(key.first) + " has ", kLookupsPerUser);
    }
    if (waiting.size() >= kLookups) {
      return too_many("all users of this node have ", kLookups);
    }
    try {
      std::thread([self = shared_from_this(), key] { self->run(key); }).detach();
    } catch (const std::system_error& error) {
      return Status(Code::kUnavailable, std::string("no thread for a lookup is to be had: ") + error.what());
    }
    return ok_status();
  }

  void run(const Key& key) {
    pthread_setname_np(pthread_self(), "gw-resolver");
    const Result<Addresses> found = lookup(key.second);
    const std::lock_guard lock(mutex);
    const auto entry = waiting.find(key);
    auto replies = std::move(entry->second);
    waiting.erase(entry);
    answer(std::move(replies), found);
  }

  // With the mutex: the scheduler is there as long as it is held.
  void answer(std::vector<Reply<Addresses>> replies, Result<Addresses> result) {
    if (scheduler != nullptr) {
      scheduler->post([alive = weak_from_this(), replies = std::move(replies), result = std::move(result)] {
        for (const auto& reply : replies) {
          if (const auto self = alive.lock(); self && self->serves()) {
            reply(result);
          }
        }
      });
    }
  }

  bool serves() {
    const std::lock_guard lock(mutex);
    return scheduler != nullptr;
  }

  Lookup lookup;
  std::mutex mutex;
  Scheduler* scheduler = nullptr;                        // null: the Resolver is gone
  std::map<Key, std::vector<Reply<Addresses>>> waiting;  // an entry for each thread
};

Resolver::Resolver(Scheduler& scheduler, Lookup lookup) : state_(std::make_shared<State>()) {
  state_->scheduler = &scheduler;
  state_->lookup = lookup ? std::move(lookup) : Lookup(look_up);
}

Resolver::~Resolver() {
  std::map<State::Key, std::vector<Reply<Addresses>>> dropped;
  const std::lock_guard lock(state_->mutex);
  state_->scheduler = nullptr;
  for (auto& [key, replies] : state_->waiting) {
    dropped[key].swap(replies);  // what they hold is this thread's
  }
}

void Resolver::resolve(uint32_t uid, const std::string& host, Reply<Addresses> done) {
  const std::lock_guard lock(state_->mutex);
  const State::Key key(uid, host);
  const auto found = state_->waiting.find(key);
  if (found != state_->waiting.end()) {
    if (found->second.size() < kRepliesPerLookup) {
      found->second.push_back(std::move(done));
    } else {
      state_->answer({std::move(done)}, Status(Code::kUnavailable,
                                               std::to_string(kRepliesPerLookup) + " joins of user " +
                                                   std::to_string(uid) + " wait for the address of " + host +
                                                   ", which is the limit; see why the name service is slow"));
    }
    return;
  }
  if (const Status status = state_->begin(key); !status.ok()) {
    state_->answer({std::move(done)}, status);
    return;
  }
  state_->waiting[key].push_back(std::move(done));
}

Result<Resolver::Addresses> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return Status(Code::kUnavailable, error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owner(list);
  Resolver::Addresses addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    if (each->ai_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(each->ai_addr);
      addresses.emplace_back(ip::address_v4(ntohl(address->sin_addr.s_addr)));
    } else if (each->ai_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(each->ai_addr);
      ip::address_v6::bytes_type bytes;
      std::memcpy(bytes.data(), &address->sin6_addr, bytes.size());
      addresses.emplace_back(ip::address_v6(bytes, address->sin6_scope_id));
    }
  }
  return addresses.empty() ? Result<Resolver::Addresses>(Status(Code::kUnavailable, "it has no address"))
                           : Result<Resolver::Addresses>(std::move(addresses));
}

}  // namespace gradwire::control
