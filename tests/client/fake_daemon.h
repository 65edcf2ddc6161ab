// A gradwired of one thread and one node for tests of the client: speaks the control protocol, serves
// sessions in shared memory, and does the local ranks' operations itself (of 16-bit floats it copies the
// first rank's). What it does wrong on purpose is set in Behaviour before the trainer connects.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "client/layout/ring.h"
#include "client/layout/session_layout.h"
#include "client/wire/framing.h"

namespace gradwire::client {

struct Behaviour {
  uint64_t layout = layout::kLayoutVersion;         // of the answer
  uint32_t memory_layout = layout::kLayoutVersion;  // in the session's header
  uint64_t magic = layout::kSessionMagic;
  std::function<void(nlohmann::json*)> edit_joined;  // just before it is sent
  std::string join_answer;                           // if not empty: sent raw instead of a joined document
  nlohmann::json join_refusal;                       // if not null: sent instead of a joined document
  std::string bucket_answer;                         // if not empty: sent raw instead of bucket_created
  bool close_after_answer = false;                   // after join_answer or bucket_answer
  bool answer_joins = true;
  bool seal = true;
  int64_t extra_session_bytes = 0;   // memfd larger (smaller) than announced
  int64_t extra_gradient_bytes = 0;  // the same for a bucket's gradient
  bool bell_is_a_pipe = false;
  size_t descriptors = 2;  // passed with joined
  std::string codec = "none";
  bool complete = true;                                      // operations; else they stay in flight
  std::function<void(layout::Completion*)> edit_completion;  // just before it is published
  int32_t completion_status = 0;
  std::string state;                                // the compression state, until another is loaded
  std::function<void(nlohmann::json*)> edit_state;  // of an answer about it, just before it is sent
  int64_t peer_timeout_ms = 2000;
  int64_t operation_timeout_ms = 20'000;
};

class FakeDaemon {
 public:
  explicit FakeDaemon(Behaviour behaviour = {});
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  const std::string& socket_path() const { return path_; }
  // From the test's thread, while trainers are attached:
  void end_epoch(const std::string& cause, bool in_memory = true, bool on_socket = true);
  void die();        // closes every socket; the socket file stays
  void come_back();  // after die(), as a new daemon at the same place
  void stand_still(bool still);
  void complete_from_now();
  nlohmann::json last_join() const;
  uint64_t orderly_leaves() const;
  std::string state() const;                      // that was loaded, or is saved
  std::vector<std::string> states() const;        // what was asked about it
  std::vector<uint8_t> submission_flags() const;  // of the operations that were completed

 private:
  struct Memory {
    wire::UniqueFd fd;
    char* address = nullptr;
    uint64_t mapped = 0;
    ~Memory();
  };
  struct Rank {
    wire::UniqueFd socket;
    wire::FrameReader reader;
    uint32_t rank = 0;
    uint32_t world = 0;
    uint64_t join_id = 0;
    bool joined = false;
    std::map<std::string, nlohmann::json> creating;
    Memory session;
    std::unique_ptr<Memory> window;  // for the compression state
    size_t state_at = 0;
    std::string loading;
    layout::SessionHeader* header = nullptr;
    wire::UniqueFd bell, trainers_bell;
    layout::RingConsumer<layout::Submission> submissions;
    layout::RingProducer<layout::Completion> completions;
    std::map<uint32_t, std::unique_ptr<Memory>> gradients;
    std::map<uint32_t, layout::Submission> pending;  // by bucket
  };
  struct Bucket {
    uint8_t dtype = 0;
    uint64_t elements = 0;
    Memory result;
  };

  void listen();
  static void make_memory(Memory* memory, uint64_t bytes, bool seal);
  void run();
  bool serve(std::vector<pollfd>* entries);  // false: there is more to do
  void accept_trainers();
  void read_socket(Rank* rank);
  void handle(Rank* rank, const nlohmann::json& document);
  void try_join();
  void create_session(Rank* rank);
  void try_create(const std::string& name);
  void handle_state(Rank* rank, const nlohmann::json& document);
  void beat();
  bool serve_rings();
  bool prepare_sleep();
  void try_complete(uint32_t bucket);
  void operate(uint32_t bucket);
  void publish(Rank* rank, const layout::Submission& submission);
  void send(Rank* rank, const std::string& bytes, const std::vector<int>& descriptors = {});
  void send_json(Rank* rank, const nlohmann::json& document, const std::vector<int>& descriptors = {});
  std::vector<Rank*> joined();
  void kick() const;

  Behaviour behaviour_;
  std::string directory_, path_;
  mutable std::recursive_mutex mutex_;  // all that follows
  wire::UniqueFd listener_, kick_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<uint32_t, Bucket> buckets_;
  uint32_t next_bucket_ = 1;
  nlohmann::json last_join_;
  uint64_t operations_ = 0;
  uint64_t leaves_ = 0;
  std::string state_;
  std::vector<std::string> states_;
  std::vector<uint8_t> flags_;
  bool still_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace gradwire::client
