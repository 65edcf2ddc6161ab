// Session: what one trainer asks of its daemon (docs/control-protocol.md, "Trainer and daemon"), without the
// socket.
//
// On the control thread. Everything the trainer says is checked here; the uid is the kernel's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "daemon/control/members.h"
#include "daemon/control/state_load.h"
#include "daemon/control/state_save.h"

namespace gradwire::control {

inline constexpr uint32_t kTrainerProtocol = 2;

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Descriptors = std::vector<std::shared_ptr<wire::UniqueFd>>;
  using Send = std::function<void(const Json& document, const Descriptors& descriptors)>;

  Session(NodeContext& node, Members& members, uint32_t uid, int32_t pid, Send send)
      : node_(node), members_(members), uid_(uid), pid_(pid), send_(std::move(send)) {}

  // Why the trainer is gone though gone() has not been called yet; empty while it is there.
  void set_probe(std::function<std::string()> probe) { probe_ = std::move(probe); }
  // What the trainer sent as a document. A failure: it is none, and the connection must end.
  Status take(std::string_view text);
  // Answers every document, with an error if need be.
  void document(const Json& document);
  // A document that cannot be read at all.
  void refuse(const Status& status) { fail(0, status); }
  // The trainer is gone, in the words of `why`: "died (pid 12)". The last call.
  void gone(const std::string& why);
  // It has no part in a job: it has not asked to join yet, or has left.
  bool without_job() const { return state_ == State::kFresh || (state_ == State::kLeft && !asking_); }
  int32_t pid() const { return pid_; }

 private:
  enum class State { kFresh, kJoining, kJoined, kLeft };

  void dispatch(uint64_t id, const std::string& type, const Json& document);
  void join(uint64_t id, const Json& document);
  void joined(uint64_t id, const Result<Joined>& joined);
  void create_bucket(uint64_t id, const Json& document);
  // session_state.cc
  static bool is_state_request(std::string_view type);
  void state_request(uint64_t id, const std::string& type, const Json& document);
  void open_state(uint64_t id, const Json& document);
  void next_of_state(uint64_t id);
  void put_state(uint64_t id, const Json& document);
  void begin_state(uint64_t id, bool save);
  void finish_load(uint64_t id, const Status& ready);
  // Answers to a transfer's end come when what it had is freed: the quota has room for what follows.
  void after_workshop(std::function<void(Session&)> then);
  void end_state();
  void close_if_asked();
  void fail_state(uint64_t id, const Status& status);
  void fail(uint64_t id, const Status& status);
  Answer answer_ok(uint64_t id);
  // Guards replies: they may come when the trainer is gone.
  template <typename Function>
  auto later(Function function) {
    return [weak = weak_from_this(), function](const auto& result) {
      if (const auto self = weak.lock(); self && !self->closed_) {
        function(*self, result);
        self->close_if_asked();
      }
    };
  }

  NodeContext& node_;
  Members& members_;
  uint32_t uid_;
  int32_t pid_;
  Send send_;
  State state_ = State::kFresh;
  bool asking_ = false;              // a request is outstanding
  std::optional<uint64_t> closing_;  // the state_close that waits for its answer
  bool closed_ = false;
  uint32_t rank_ = 0;
  const uint64_t number_ = ++node_.last_session;
  std::function<std::string()> probe_;
  std::shared_ptr<Member> member_;
  std::shared_ptr<StateSave> save_;  // at most one of the two
  std::shared_ptr<StateLoad> load_;
  std::shared_ptr<void> charge_;  // of the user's sessions
};

}  // namespace gradwire::control
