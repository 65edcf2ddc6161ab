#include <deque>

#include "daemon/control/link.h"

namespace gradwire::control {
namespace {

class LocalLink final : public Link, public std::enable_shared_from_this<LocalLink> {
 public:
  explicit LocalLink(Scheduler& scheduler) : scheduler_(scheduler) {}
  ~LocalLink() override { tell_other_closed(); }

  void connect(const std::shared_ptr<LocalLink>& other) { other_ = other; }

  void start(OnDocument document, OnClosed closed) override {
    document_ = std::move(document);
    closed_ = std::move(closed);
    deliver_soon();
  }

  void send(const Json& document) override {
    if (auto other = open_ ? other_.lock() : nullptr) {
      other->inbox_.push_back(document);
      other->deliver_soon();
    }
  }

  void close() override {
    if (open_) {
      open_ = false;
      tell_other_closed();
      // The callbacks may be running at this moment: they are released later.
      scheduler_.post([self = shared_from_this()] {
        self->document_ = nullptr;
        self->closed_ = nullptr;
      });
    }
  }

  std::string peer() const override { return "this daemon"; }
  bool within_process() const override { return true; }

 private:
  void tell_other_closed() {
    if (auto other = other_.lock()) {
      other->ended_ = true;
      other->deliver_soon();
    }
  }

  void deliver_soon() {
    scheduler_.post([weak = weak_from_this()] {
      if (auto self = weak.lock()) {
        self->deliver();
      }
    });
  }

  void deliver() {
    while (open_ && document_ && !inbox_.empty()) {
      const Json document = std::move(inbox_.front());
      inbox_.pop_front();
      document_(document);
    }
    if (open_ && ended_ && closed_) {
      open_ = false;
      const OnClosed closed = std::move(closed_);
      closed_ = nullptr;
      closed(Status(Code::kUnavailable, "connection closed"));
    }
  }

  Scheduler& scheduler_;
  std::weak_ptr<LocalLink> other_;
  OnDocument document_;
  OnClosed closed_;
  std::deque<Json> inbox_;
  bool open_ = true;
  bool ended_ = false;
};

}  // namespace

std::pair<LinkPtr, LinkPtr> make_local_links(Scheduler& scheduler) {
  auto first = std::make_shared<LocalLink>(scheduler);
  auto second = std::make_shared<LocalLink>(scheduler);
  first->connect(second);
  second->connect(first);
  return {first, second};
}

}  // namespace gradwire::control
