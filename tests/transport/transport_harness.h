// What the transport tests share: recording receivers, counting completions, and fabrics that make
// transports.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::transport::testing {

// Of this process; what has closed all that it opened finds as many as before.
inline ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class Recorder : public Receiver {
 public:
  struct Seen {
    std::vector<std::byte> header, payload;
  };
  void on_message(std::span<const std::byte> header, std::span<const std::byte> payload) override {
    ++messages;
    if (keep) {
      seen.push_back({{header.begin(), header.end()}, {payload.begin(), payload.end()}});
    }
    if (then) {
      then(header, payload);
    }
  }
  void on_peer_error(PeerId peer, const Status& status) override {
    errors.push_back(peer);
    error = status;
    if (then_error) {
      then_error(peer);
    }
  }

  bool keep = true;
  uint64_t messages = 0;
  std::vector<Seen> seen;
  std::vector<PeerId> errors;
  Status error;
  std::function<void(std::span<const std::byte>, std::span<const std::byte>)> then;
  std::function<void(PeerId)> then_error;
};

// One for many sends: counts them by outcome.
class Completions : public SendCompletion {
 public:
  void on_sent(const Status& status) override {
    ++total;
    switch (status.code()) {
      case Code::kOk:
        ++ok;
        break;
      case Code::kAborted:
        ++aborted;
        break;
      case Code::kUnavailable:
        ++unavailable;
        break;
      default:
        ++other;
        last = status;
    }
    if (then) {
      then();
    }
  }
  uint64_t total = 0, ok = 0, aborted = 0, unavailable = 0, other = 0;
  Status last;
  std::function<void()> then;
};

// Makes transports that reach each other and moves whatever is not moved by poll().
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::unique_ptr<Transport> create(std::string_view name) = 0;
  virtual void turn() = 0;
};

std::unique_ptr<Fabric> make_sim_fabric(uint64_t seed);
std::unique_ptr<Fabric> make_ucx_fabric();  // over tcp on the loopback device
UcxOptions loopback_options();

uint64_t allocations();  // by operator new so far (counted_new.cc); UCX's own are not seen

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::vector<std::byte> pattern(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  uint32_t x = seed * 2654435761u + 12345u;
  for (auto& byte : bytes) {
    x = x * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(x >> 24);
  }
  return bytes;
}

template <typename T>
T load(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

template <typename T>
std::span<const std::byte> bytes_of_value(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(T)};
}

// Polls everything until `done`; false when it is not so after `limit` of real time.
inline bool drive(Fabric& fabric, std::vector<Transport*> transports, const std::function<bool()>& done,
                  std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    size_t events = 0;
    for (Transport* transport : transports) {
      events += transport->poll();
    }
    if (events == 0) {
      fabric.turn();
      ::sched_yield();
      if (std::chrono::steady_clock::now() > end) {
        return done();
      }
    }
  }
  return true;
}

}  // namespace gradwire::transport::testing
