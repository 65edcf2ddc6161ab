// A trainer's side of the daemon's socket without the client library: says anything, in any pieces.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/wire/framing.h"

namespace gradwire::control::testing {

using Json = nlohmann::json;

class RawTrainer {
 public:
  explicit RawTrainer(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path.c_str());
    // Blocking: a full backlog is waited for.
    connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  }

  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }

  // Returns how much went before the daemon closed or `limit_ms` was over.
  size_t send_bytes(std::string_view bytes, size_t piece = SIZE_MAX, int limit_ms = 5000) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const auto went = wire::send_some(socket_.get(), bytes.substr(sent, piece));
      if (!went.ok()) {
        break;
      }
      sent += *went;
      pollfd entry{socket_.get(), POLLOUT, 0};
      if (*went == 0 && poll(&entry, 1, limit_ms) != 1) {
        break;
      }
    }
    return sent;
  }
  void send(const Json& document) { send_bytes(wire::encode_frame(document.dump())); }

  // The next document; nothing if the daemon closed or says nothing.
  std::optional<Json> receive(int limit_ms = 5000) {
    std::array<char, 16384> buffer;
    for (;;) {
      if (auto text = reader_.next()) {
        return Json::parse(*text);
      }
      pollfd entry{socket_.get(), POLLIN, 0};
      if (poll(&entry, 1, limit_ms) != 1) {
        return std::nullopt;
      }
      const auto received = wire::receive_some(socket_.get(), buffer, &descriptors);
      if (!received.ok() || received->end_of_file || !reader_.feed(buffer.data(), received->bytes).ok()) {
        closed_ = true;
        return std::nullopt;
      }
    }
  }
  std::optional<Json> ask(const Json& document) {
    send(document);
    return receive();
  }
  // Reads what is there until the daemon closes.
  bool is_closed(int limit_ms = 5000) {
    while (!closed_ && receive(limit_ms)) {
    }
    return closed_;
  }

  std::vector<wire::UniqueFd> descriptors;

 private:
  wire::UniqueFd socket_;
  wire::FrameReader reader_;
  bool connected_ = false;
  bool closed_ = false;
};

inline Json join_request(const std::string& job, uint32_t rank = 0, uint32_t world = 1) {
  return {{"type", "join"},     {"id", 1},          {"protocol", 2},       {"layout", 2},
          {"version", "0.1.0"}, {"job", job},       {"run_id", "0"},       {"rank", rank},
          {"world", world},     {"rendezvous", ""}, {"timeout_ms", 60000}, {"fresh", false}};
}

inline bool is_error(const std::optional<Json>& answer) {
  return answer && (*answer)["type"] == "error" && !(*answer)["message"].get<std::string>().empty();
}

}  // namespace gradwire::control::testing
