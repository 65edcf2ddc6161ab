// What other daemons may say: members to the coordinator, and a coordinator to a member that has trainers.
//
// Input: lines. '0', '1' and a document: that foreign member says it to the coordinator. 'c' and a document:
// the foreign coordinator says it. 'x' and '0', '1' or 'c': that link breaks. 'j' and "RANK WORLD": a local
// trainer joins the job that this node coordinates; 'J': the job of the foreign coordinator. 'b': every
// local trainer creates a bucket. 'l': the first local trainer leaves. 't' and a number: so many milliseconds
// pass.
#include <array>

#include "tests/fuzz/control_world.h"

namespace gradwire::control {
namespace {

using fuzz::require;

constexpr size_t kMostLines = 100;
constexpr uint32_t kLongestWait = 400'000;  // ms

// A link whose other end is the input.
class InputLink final : public Link {
 public:
  explicit InputLink(Scheduler& scheduler) : scheduler_(scheduler) {}

  void start(OnDocument document, OnClosed closed) override {
    document_ = std::move(document);
    closed_ = std::move(closed);
  }
  void send(const Json& document) override {
    require(parse_document(write_document(document)).ok(), "what is said is a document");
  }
  void close() override {
    open_ = false;
    // The callbacks may be running at this moment.
    scheduler_.post([document = std::move(document_), closed = std::move(closed_)] {});
    document_ = nullptr;
    closed_ = nullptr;
  }
  std::string peer() const override { return "a foreign daemon"; }

  void say(std::string_view text) {
    const Result<Json> document = parse_document(text);
    if (!document.ok()) {
      broke(document.status());
    } else if (open_ && document_) {
      const OnDocument handler = document_;  // it may close the link
      handler(*document);
    }
  }
  void broke(const Status& why) {
    if (open_ && closed_) {
      open_ = false;
      const OnClosed handler = closed_;
      handler(why);
    }
  }

 private:
  Scheduler& scheduler_;
  OnDocument document_;
  OnClosed closed_;
  bool open_ = true;
};

class World {
 public:
  World() : cluster_(one_node()) {
    testing::TestNode& node = *cluster_->nodes[0];
    node.context->connect = [this, own = node.context->connect](const std::string& rendezvous, uint32_t uid,
                                                                Reply<LinkPtr> done) {
      if (rendezvous != "foreign:1") {
        own(rendezvous, uid, std::move(done));
        return;
      }
      foreign_coordinator_ = std::make_shared<InputLink>(cluster_->scheduler);
      done(LinkPtr(foreign_coordinator_));
    };
  }

  void line(std::string_view text) {
    const char what = text.empty() ? '\0' : text[0];
    const std::string_view rest = text.substr(text.empty() ? 0 : 1);
    if (what == '0' || what == '1') {
      foreign_member(what)->say(rest);
    } else if (what == 'c' && foreign_coordinator_) {
      const auto link = foreign_coordinator_;
      link->say(rest);
    } else if (what == 'x' && !rest.empty()) {
      break_link(rest[0]);
    } else if (what == 'j' || what == 'J') {
      const uint32_t rank = leading_number(rest, 7);
      const size_t space = rest.find(' ');
      const uint32_t world = space == std::string_view::npos ? 2 : leading_number(rest.substr(space + 1), 8);
      join(what == 'J' ? "foreign:1" : "a:7470", rank, std::max(world, rank + 1));
    } else if (what == 'b') {
      for (const auto& rank : ranks_) {
        create(rank);
      }
    } else if (what == 'l' && !ranks_.empty()) {
      leave(ranks_.front());
    } else if (what == 't') {
      cluster_->scheduler.advance(testing::milliseconds(leading_number(rest, kLongestWait)));
    }
    cluster_->scheduler.settle();
  }

  void end() {
    for (const char which : {'0', '1', 'c'}) {
      break_link(which);
    }
    cluster_->scheduler.settle();
    for (const auto& rank : ranks_) {
      rank->bucket.reset();  // the kernel closes what it had
      if (rank->member) {
        rank->member->trainer_gone(rank->rank, "died");
      }
      cluster_->scheduler.settle();
    }
    cluster_->scheduler.advance(testing::seconds(30));
    require(cluster_->nodes[0]->members->size() == 0, "no job is left");
    require(cluster_->coordinator->jobs() == 0, "nor one that is coordinated here");
    require(cluster_->coordinator->members() == 0, "nor a link to a member");
    require(cluster_->nodes[0]->context->quotas->held_bytes(7) == 0, "the user is charged for nothing");
  }

 private:
  std::shared_ptr<InputLink> foreign_member(char which) {
    auto& link = which == '0' ? foreign_members_[0] : foreign_members_[1];
    if (!link) {
      link = std::make_shared<InputLink>(cluster_->scheduler);
      cluster_->coordinator->accept(link);
      cluster_->scheduler.settle();
    }
    return link;
  }

  void break_link(char which) {
    auto& link = which == 'c'   ? foreign_coordinator_
                 : which == '0' ? foreign_members_[0]
                                : foreign_members_[1];
    if (const auto broken = std::move(link)) {
      broken->broke(Status(Code::kUnavailable, "connection reset"));
    }
    link = nullptr;
  }

  void join(const char* rendezvous, uint32_t rank, uint32_t world) {
    auto joined = std::make_shared<testing::TestRank>();
    joined->rank = rank;
    LocalJoin join;
    join.rank = rank;
    join.world = world;
    join.pid = 1000;
    join.timeout_ms = 60'000;
    join.aborted =
        testing::into(joined, [](testing::TestRank& self, const Status& cause) { self.aborted = cause; });
    join.placed = testing::into(
        joined, [](testing::TestRank& self, const std::shared_ptr<Member>& member) { self.member = member; });
    cluster_->nodes[0]->members->join(
        {7, "job", "0"}, rendezvous, std::move(join),
        testing::into(joined, [](testing::TestRank& self, const Result<Joined>& result) {
          require(!self.joined, "one answer to a join");
          self.joined = result;
        }));
    ranks_.push_back(joined);
  }

  void create(const std::shared_ptr<testing::TestRank>& rank) {
    if (rank->running()) {
      cluster_->create(rank, Manifest{"bucket", 0, kBucketGradient, {{"w", 3000}, {"b", 10}}});
    }
  }

  void leave(const std::shared_ptr<testing::TestRank>& rank) {
    if (rank->running()) {
      cluster_->leave(rank);
    }
  }

  std::unique_ptr<testing::TestCluster> cluster_;
  std::array<std::shared_ptr<InputLink>, 2> foreign_members_;
  std::shared_ptr<InputLink> foreign_coordinator_;
  std::vector<std::shared_ptr<testing::TestRank>> ranks_;
};

}  // namespace
}  // namespace gradwire::control

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gradwire::fuzz::Input input(data, size);
  gradwire::control::World world;
  for (size_t i = 0; i < gradwire::control::kMostLines && !input.empty(); ++i) {
    world.line(input.line());
  }
  world.end();
  return 0;
}
