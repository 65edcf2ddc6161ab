#include "tests/client/fake_daemon.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>

namespace gradwire::client {

using nlohmann::json;

FakeDaemon::FakeDaemon(Behaviour behaviour) : behaviour_(std::move(behaviour)), state_(behaviour_.state) {
  const char* base = std::getenv("TMPDIR");
  directory_ = std::string(base != nullptr ? base : "/tmp") + "/gradwire-test-XXXXXX";
  if (::mkdtemp(directory_.data()) == nullptr) {
    ADD_FAILURE() << "mkdtemp failed";
  }
  path_ = directory_ + "/gradwired.sock";
  listen();
  kick_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { run(); });
}

void FakeDaemon::listen() {
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    ADD_FAILURE() << "cannot listen at " << path_;
  }
}

FakeDaemon::~FakeDaemon() {
  stop_ = true;
  kick();
  thread_.join();
  ::unlink(path_.c_str());
  ::rmdir(directory_.c_str());
}

void FakeDaemon::kick() const {
  const uint64_t one = 1;
  (void)!::write(kick_.get(), &one, sizeof(one));
}

void FakeDaemon::end_epoch(const std::string& cause, bool in_memory, bool on_socket) {
  const std::lock_guard lock(mutex_);
  for (Rank* rank : joined()) {
    if (in_memory) {
      std::strncpy(rank->header->abort_cause, cause.c_str(), layout::kCauseBytes - 1);
      rank->header->abort_status.store(7, std::memory_order_release);  // pairs with the client's load
    }
    if (on_socket) {
      send_json(rank, {{"type", "aborted"}, {"code", "aborted"}, {"message", cause}});
    }
  }
}

void FakeDaemon::die() {
  const std::lock_guard lock(mutex_);
  // Closed alone, they would live on for as long as the thread is in poll.
  for (auto& rank : ranks_) {
    ::shutdown(rank->socket.get(), SHUT_RDWR);
    ::shutdown(rank->bell.get(), SHUT_RDWR);
  }
  ::shutdown(listener_.get(), SHUT_RDWR);
  ranks_.clear();
  listener_.reset();
}

void FakeDaemon::come_back() {
  const std::lock_guard lock(mutex_);
  ::unlink(path_.c_str());
  buckets_.clear();
  listen();
  kick();
}

void FakeDaemon::complete_from_now() {
  const std::lock_guard lock(mutex_);
  behaviour_.complete = true;
  for (auto& [id, bucket] : buckets_) {
    try_complete(id);
  }
  try_complete(0);
}

json FakeDaemon::last_join() const {
  const std::lock_guard lock(mutex_);
  return last_join_;
}

uint64_t FakeDaemon::orderly_leaves() const {
  const std::lock_guard lock(mutex_);
  return leaves_;
}

std::vector<uint8_t> FakeDaemon::submission_flags() const {
  const std::lock_guard lock(mutex_);
  return flags_;
}

std::vector<FakeDaemon::Rank*> FakeDaemon::joined() {
  std::vector<Rank*> found;
  for (auto& rank : ranks_) {
    if (rank->joined) {
      found.push_back(rank.get());
    }
  }
  return found;
}

void FakeDaemon::stand_still(bool still) {
  const std::lock_guard lock(mutex_);  // nothing that had begun goes on after this
  still_ = still;
}

void FakeDaemon::run() {
  while (!stop_) {
    std::vector<pollfd> entries;
    if (!serve(&entries)) {
      continue;
    }
    ::poll(entries.data(), entries.size(), entries.empty() ? 2 : 100);
    uint64_t count = 0;
    (void)!::read(kick_.get(), &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    for (auto& rank : ranks_) {
      char rings[64];
      (void)!::recv(rank->bell.get(), rings, sizeof(rings), MSG_DONTWAIT);
    }
  }
}

bool FakeDaemon::serve(std::vector<pollfd>* entries) {
  const std::lock_guard lock(mutex_);
  if (still_) {
    return true;
  }
  beat();
  accept_trainers();
  for (size_t i = 0; i < ranks_.size();) {
    read_socket(ranks_[i].get());
    ranks_[i]->socket.valid() ? ++i : (ranks_.erase(ranks_.begin() + static_cast<std::ptrdiff_t>(i)), i);
  }
  if (serve_rings() || !prepare_sleep()) {
    return false;
  }
  entries->push_back({kick_.get(), POLLIN, 0});
  entries->push_back({listener_.get(), POLLIN, 0});
  for (auto& rank : ranks_) {
    entries->push_back({rank->socket.get(), POLLIN, 0});
    entries->push_back({rank->bell.get(), POLLIN, 0});
  }
  return true;
}

void FakeDaemon::accept_trainers() {
  for (;;) {
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      return;
    }
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->socket.reset(fd);
  }
}

void FakeDaemon::read_socket(Rank* rank) {
  for (;;) {
    char buffer[4096];
    std::vector<wire::UniqueFd> none;
    const auto received = wire::receive_some(rank->socket.get(), buffer, &none);
    if (!received.ok() || received.value().end_of_file ||
        !rank->reader.feed(buffer, received.value().bytes).ok()) {
      rank->socket.reset();
      return;
    }
    while (auto document = rank->reader.next()) {
      handle(rank, json::parse(*document));
      if (!rank->socket.valid()) {
        return;
      }
    }
    if (received.value().would_block) {
      return;
    }
  }
}

void FakeDaemon::handle(Rank* rank, const json& document) {
  const std::string type = document.at("type");
  if (type == "join") {
    last_join_ = document;
    rank->rank = document.at("rank");
    rank->world = document.at("world");
    rank->join_id = document.at("id");
    if (!behaviour_.join_answer.empty()) {
      send(rank, behaviour_.join_answer);
    } else if (!behaviour_.join_refusal.is_null()) {
      json refusal = behaviour_.join_refusal;
      refusal["id"] = rank->join_id;
      send_json(rank, refusal);
    } else if (behaviour_.answer_joins) {
      try_join();
    }
    if (behaviour_.close_after_answer) {
      rank->socket.reset();
    }
  } else if (type == "bucket_create") {
    rank->creating[document.at("name")] = document;
    try_create(document.at("name"));
  } else if (type.starts_with("state_")) {
    handle_state(rank, document);
  } else if (type == "traffic") {
    send_json(rank, {{"type", "traffic"},
                     {"id", document.at("id")},
                     {"operations", operations_},
                     {"raw_bytes", 1000 * operations_},
                     {"wire_bytes", 10 * operations_}});
  } else {
    leaves_ += type == "leave" ? 1 : 0;
    send_json(rank, {{"type", "ok"}, {"id", document.at("id")}});
  }
}

void FakeDaemon::try_join() {
  if (ranks_.empty()) {
    return;
  }
  for (auto& rank : ranks_) {
    if (rank->join_id == 0 || ranks_.size() < rank->world) {
      return;
    }
  }
  for (auto& rank : ranks_) {
    if (rank->joined) {
      continue;
    }
    create_session(rank.get());
    json local = json::array();
    for (auto& other : ranks_) {
      local.push_back(other->rank);
    }
    std::vector<int> fds{rank->session.fd.get(), rank->trainers_bell.get(), kick_.get()};
    fds.resize(behaviour_.descriptors);
    json answer{{"type", "joined"},
                {"id", rank->join_id},
                {"layout", behaviour_.layout},
                {"version", "9.9.9"},
                {"session_bytes", layout::kSessionBytes},
                {"local_ranks", local},
                {"nodes", 1},
                {"peer_timeout_ms", behaviour_.peer_timeout_ms},
                {"operation_timeout_ms", behaviour_.operation_timeout_ms},
                {"epoch", 1}};
    if (behaviour_.edit_joined) {
      behaviour_.edit_joined(&answer);
    }
    send_json(rank.get(), answer, fds);
    rank->trainers_bell.reset();
  }
}

void FakeDaemon::try_create(const std::string& name) {
  for (Rank* rank : joined()) {
    if (!rank->creating.contains(name)) {
      return;
    }
  }
  const json first = joined().front()->creating[name];
  bool equal = true;
  for (Rank* rank : joined()) {
    equal = equal && rank->creating[name].at("layers") == first.at("layers") &&
            rank->creating[name].at("dtype") == first.at("dtype");
  }
  static constexpr uint64_t kSizes[] = {4, 2, 2, 8, 4, 8, 1};
  const uint32_t id = next_bucket_++;
  uint64_t elements = 0;
  for (const json& layer : first.at("layers")) {
    elements += layer.at(1).get<uint64_t>();
  }
  const uint8_t dtype = first.at("dtype");
  const uint64_t bytes = (elements * kSizes[dtype] / 4096 + 1) * 4096;
  if (equal) {
    Bucket& bucket = buckets_[id];
    bucket.dtype = dtype;
    bucket.elements = elements;
    make_memory(&bucket.result, bytes, true);
  }
  for (Rank* rank : joined()) {
    const json request = rank->creating[name];
    rank->creating.erase(name);
    if (!equal) {
      send_json(rank, {{"type", "error"},
                       {"id", request.at("id")},
                       {"code", "mismatch"},
                       {"message", "bucket " + name + " differs between rank 0 and rank 1"}});
      continue;
    }
    auto& gradient = rank->gradients[id] = std::make_unique<Memory>();
    make_memory(gradient.get(), bytes + static_cast<uint64_t>(behaviour_.extra_gradient_bytes),
                behaviour_.seal);
    if (!behaviour_.bucket_answer.empty()) {
      send(rank, behaviour_.bucket_answer);
    } else {
      send_json(rank,
                {{"type", "bucket_created"},
                 {"id", request.at("id")},
                 {"bucket", id},
                 {"codec", behaviour_.codec},
                 {"gradient_bytes", bytes},
                 {"result_bytes", bytes}},
                {gradient->fd.get(), buckets_[id].result.fd.get()});
    }
  }
}

void FakeDaemon::send(Rank* rank, const std::string& bytes, const std::vector<int>& descriptors) {
  (void)!wire::send_some(rank->socket.get(), bytes, descriptors).ok();
}

void FakeDaemon::send_json(Rank* rank, const json& document, const std::vector<int>& descriptors) {
  send(rank, wire::encode_frame(document.dump()), descriptors);
}

}  // namespace gradwire::client
