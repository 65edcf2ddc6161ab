// Link: an ordered stream of JSON documents to another daemon, or to another part of this one.
//
// Used on one thread. The state machines see nothing else of the network.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "config/base/result.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

using Json = nlohmann::json;

class Link {
 public:
  using OnDocument = std::function<void(const Json&)>;
  using OnClosed = std::function<void(const Status&)>;

  virtual ~Link() = default;

  // Called once; documents that came before are delivered after it. `closed` is called at most once, and only
  // if the other side or the network ended the link. Nothing is called from inside start() or send().
  virtual void start(OnDocument document, OnClosed closed) = 0;
  // Lost without a word if the link is closed.
  virtual void send(const Json& document) = 0;
  // What was sent still goes out, as far as the other side takes it soon. No callback comes after this.
  virtual void close() = 0;
  // The other side, for messages: "10.0.0.2:7470" or "this daemon".
  virtual std::string peer() const = 0;
  // No network is in between: the other side is alive while this one is.
  virtual bool within_process() const { return false; }
  // What has come waits here for its turn: the other side is not silent, though nothing is delivered.
  virtual bool waits() const { return false; }
};

using LinkPtr = std::shared_ptr<Link>;

// Two ends inside one process.
std::pair<LinkPtr, LinkPtr> make_local_links(Scheduler& scheduler);

}  // namespace gradwire::control
