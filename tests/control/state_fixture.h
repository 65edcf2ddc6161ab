// A trainer that saves and loads its job's compression state, without sockets.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compress/state_format.h"
#include "daemon/control/session.h"
#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {

using Bytes = std::vector<std::byte>;

inline constexpr uint64_t kLarge = 700'000;  // elements: three windows
inline constexpr uint64_t kWindow = 1U << 20;

// A cluster of one node whose policy compresses, and a trainer that speaks the protocol.
struct World : Compressing {
  World() : Compressing({"a"}) {}
  NodeContext& node() { return *nodes[0]->context; }
  FakeEngine& engine() { return *nodes[0]->engine; }
  uint64_t held() { return node().quotas->held_bytes(7); }
  void limit(uint64_t bytes) {
    quotas.bytes_per_user = bytes;
    node().quotas->set_limits(quotas);
  }
};

class Trainer {
 public:
  Trainer(World& world, uint32_t rank, uint32_t ranks = 1)
      : world_(world),
        session_(
            std::make_shared<Session>(world.node(), *world.nodes[0]->members, 7, 1000,
                                      [this](const Json& document, const Session::Descriptors& descriptors) {
                                        heard_.push_back(document);
                                        if (document["type"] == "state_opened") {
                                          map(descriptors.at(0)->get(), document["window_bytes"]);
                                        }
                                      })) {
    ask({{"type", "join"},
         {"protocol", kTrainerProtocol},
         {"layout", 2},
         {"job", "job"},
         {"run_id", "0"},
         {"version", "0.1.0"},
         {"rank", rank},
         {"world", ranks},
         {"timeout_ms", 9000},
         {"fresh", false},
         {"rendezvous", "a:7470"}});
  }
  ~Trainer() { die(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void die() {
    if (session_) {
      std::exchange(session_, nullptr)->gone("died (pid 1000)");
      world_.scheduler.settle();
    }
    unmap();
  }
  // The answer, which must come without time passing; a join's may come when others have joined.
  Json ask(const Json& request) {
    send(request);
    world_.scheduler.settle();
    EXPECT_TRUE(answered() || request["type"] == "join") << "no answer to " << request;
    return answered() ? heard_.back() : Json();
  }
  void send(Json request) {
    request["id"] = ++id_;
    EXPECT_TRUE(session_->take(write_document(request)).ok());
  }
  // Whether the last request was.
  bool answered() const { return !heard_.empty() && heard_.back().value("id", uint64_t{0}) == id_; }
  const Json& last() const { return heard_.back(); }
  size_t heard() const { return heard_.size(); }
  Json create(const std::string& name, const std::vector<std::pair<std::string, uint64_t>>& layers,
              uint32_t flags = kBucketGradient) {
    return ask(
        {{"type", "bucket_create"}, {"name", name}, {"dtype", 0}, {"flags", flags}, {"layers", layers}});
  }
  Json open(const char* direction) { return ask({{"type", "state_open"}, {"direction", direction}}); }
  std::span<std::byte> window() const { return window_; }

  Bytes save() {
    Bytes bytes;
    Json answer = open("save");
    EXPECT_EQ(answer["type"], "state_opened") << answer;
    for (bool last = answer["type"] != "state_opened"; !last;) {
      answer = ask({{"type", "state_next"}});
      if (answer["type"] != "state_part") {
        ADD_FAILURE() << answer;
        break;
      }
      const auto part = window_.first(answer["bytes"].get<size_t>());
      bytes.insert(bytes.end(), part.begin(), part.end());
      last = answer["last"];
      parts += 1;
    }
    return bytes;
  }
  Json load(std::span<const std::byte> bytes) {
    Json answer = open("load");
    for (size_t at = 0; answer["type"] == "state_opened" || answer["type"] == "ok";) {
      const size_t count = std::min(bytes.size() - at, window_.size());
      const auto part = bytes.subspan(at, count);
      std::copy(part.begin(), part.end(), window_.begin());
      at += count;
      const bool last = at == bytes.size();
      answer = ask({{"type", "state_put"}, {"bytes", count}, {"last", last}});
      if (last) {
        break;
      }
    }
    return answer;
  }

  void unmap() {
    if (!window_.empty()) {
      munmap(window_.data(), window_.size());
      window_ = {};
    }
  }

  int parts = 0;

 private:
  void map(int fd, size_t bytes) {
    unmap();
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT_NE(address, MAP_FAILED);
    window_ = {static_cast<std::byte*>(address), bytes};
  }
  World& world_;
  std::vector<Json> heard_;
  uint64_t id_ = 0;
  std::span<std::byte> window_;
  std::shared_ptr<Session> session_;
};

inline std::vector<compress::StateSection> parsed(const Bytes& bytes) {
  compress::StateReader reader;
  (void)reader.feed(bytes);
  const Status status = reader.finish();
  EXPECT_TRUE(status.ok()) << status.message();
  return reader.take();
}

inline const JobIdentity kJob{7, "job", "0"};

// A node's state: bucket "saved", whose layer "w" has 300 residuals of 7.
inline Bytes saved_sevens() {
  World world;
  Trainer trainer(world, 0);
  world.node().residuals->keep(kJob, "saved", {layer_state("w", std::vector<float>(300, 7))});
  return trainer.save();
}

// One committed operation, as the engine would run it on a single node.
inline void operate(compress::BucketReducer& reducer, uint64_t elements) {
  const std::vector<float> gradient(elements, 0.3F);
  const std::vector<const void*> locals = {gradient.data()};
  ASSERT_TRUE(reducer.begin({}).ok());
  for (const compress::Segment& segment : reducer.geometry().segments(0)) {
    Bytes out(segment.max_bytes);
    ASSERT_TRUE(reducer.hop(segment, {}, locals, out.data()).ok());
  }
  reducer.commit();
}

}  // namespace gradwire::control::testing
