// What trainers may say to their daemon, in any order, until they are gone: nothing is left of them then.
//
// Input: lines. '0', '1', '2' and a document: that trainer says it. 'x' and a digit: that trainer dies.
// 't' and a number: so many milliseconds pass. 'f': the engine says that the first job has failed.
#include <array>

#include "daemon/control/session.h"
#include "tests/fuzz/control_world.h"

namespace gradwire::control {
namespace {

using fuzz::require;

constexpr uint32_t kUser = 7;
constexpr size_t kMostLines = 100;
constexpr uint32_t kLongestWait = 400'000;  // ms

class Trainers {
 public:
  explicit Trainers(testing::TestCluster& cluster) : cluster_(cluster) {}

  void line(std::string_view text) {
    const char what = text.empty() ? '\0' : text[0];
    const std::string_view rest = text.substr(text.empty() ? 0 : 1);
    if (what >= '0' && what <= '2') {
      say(static_cast<size_t>(what - '0'), rest);
    } else if (what == 'x') {
      die(leading_number(rest, 2));
    } else if (what == 't') {
      cluster_.scheduler.advance(testing::milliseconds(leading_number(rest, kLongestWait)));
    } else if (what == 'f') {
      for (const JobFacts& job : members().facts()) {
        members().find(job.id)->engine_failed(Status(Code::kUnavailable, "the link is gone"));
        break;
      }
    }
    cluster_.scheduler.settle();
  }

  void all_die() {
    for (size_t i = 0; i < trainers_.size(); ++i) {
      die(i);
    }
    cluster_.scheduler.advance(testing::seconds(30));
    require(members().size() == 0, "no job is left");
    require(cluster_.coordinator->jobs() == 0, "nor one that is coordinated here");
    require(cluster_.nodes[0]->engine->jobs.empty(), "nor one in the engine");
    require(cluster_.nodes[0]->context->quotas->held_bytes(kUser) == 0, "the user is charged for nothing");
  }

 private:
  struct Trainer {
    std::shared_ptr<Session> session;
    size_t said = 0;
    size_t answers = 0;
  };

  Members& members() { return *cluster_.nodes[0]->members; }

  void say(size_t index, std::string_view text) {
    Trainer& trainer = trainers_[index];
    if (!trainer.session) {
      trainer = Trainer{};
      trainer.session = std::make_shared<Session>(
          *cluster_.nodes[0]->context, members(), kUser, static_cast<int32_t>(100 + index),
          [&trainer](const Json& document, const Session::Descriptors&) {
            require(parse_document(write_document(document)).ok(), "an answer is a document");
            trainer.answers += document.at("type") == "aborted" ? 0 : 1;
          });
    }
    trainer.said += 1;
    const Result<Json> document = parse_document(text);
    if (document.ok()) {
      trainer.session->document(*document);
    } else {
      trainer.session->refuse(document.status());
    }
    cluster_.scheduler.settle();
    require(trainer.answers <= trainer.said, "one answer each");
  }

  void die(size_t index) {
    if (trainers_[index].session) {
      trainers_[index].session->gone("died (pid " + std::to_string(100 + index) + ")");
      trainers_[index].session = nullptr;
    }
    cluster_.scheduler.settle();
  }

  testing::TestCluster& cluster_;
  std::array<Trainer, 3> trainers_;
};

}  // namespace
}  // namespace gradwire::control

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::control;  // NOLINT(google-build-using-namespace)
  gradwire::fuzz::Input input(data, size);
  const auto cluster = one_node();
  Trainers trainers(*cluster);
  for (size_t i = 0; i < kMostLines && !input.empty(); ++i) {
    trainers.line(input.line());
  }
  trainers.all_die();
  return 0;
}
