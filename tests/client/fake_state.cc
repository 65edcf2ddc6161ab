// The fake daemon keeps a compression state as the text that it is given.
#include <cstring>

#include "tests/client/fake_daemon.h"

namespace gradwire::client {

void FakeDaemon::handle_state(Rank* rank, const nlohmann::json& document) {
  constexpr size_t kWindow = 4096;
  const std::string type = document.at("type");
  states_.push_back(type == "state_open" ? type + " " + std::string(document.at("direction")) : type);
  nlohmann::json answer{{"type", "ok"}, {"id", document.at("id")}};
  std::vector<int> descriptors;
  if (type == "state_open") {
    rank->window = std::make_unique<Memory>();
    make_memory(rank->window.get(), kWindow, true);
    rank->state_at = 0;
    rank->loading.clear();
    answer["type"] = "state_opened";
    answer["window_bytes"] = kWindow;
    descriptors.push_back(rank->window->fd.get());
  } else if (type == "state_next") {
    const std::string part = state_.substr(rank->state_at, kWindow);
    std::memcpy(rank->window->address, part.data(), part.size());
    rank->state_at += part.size();
    answer["type"] = "state_part";
    answer["bytes"] = part.size();
    answer["last"] = rank->state_at == state_.size();
  } else if (type == "state_put") {
    rank->loading.append(rank->window->address, document.at("bytes").get<size_t>());
    state_ = document.at("last").get<bool>() ? rank->loading : state_;
  }
  if (behaviour_.edit_state) {
    behaviour_.edit_state(&answer);
  }
  send_json(rank, answer, descriptors);
}

std::string FakeDaemon::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::vector<std::string> FakeDaemon::states() const {
  const std::lock_guard lock(mutex_);
  return states_;
}

}  // namespace gradwire::client
