#include "client/src/connection.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "client/src/error.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

constexpr size_t kMaxSentence = 1500;

// How many descriptors a document of this type claims, wanted or stale. Of a joined answer, which comes
// first and may be of another version, all that came.
size_t descriptors_of(std::string_view type) {
  return type == "joined"           ? wire::kMaxDescriptors
         : type == "bucket_created" ? 2
         : type == "state_opened"   ? 1
                                    : 0;
}

// An object with a type, or discarded.
json parse_document(const std::string& text, std::string* type) {
  json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !read_member(document, "type", 64, type)) {
    return json(json::value_t::discarded);
  }
  return document;
}

}  // namespace

bool read_member(const json& document, const char* name, uint64_t high, uint64_t* value) {
  const auto member = document.find(name);
  if (member == document.end() || !member->is_number_unsigned()) {
    return false;
  }
  *value = member->get<uint64_t>();
  return *value <= high;
}

bool read_member(const json& document, const char* name, size_t limit, std::string* value) {
  const auto member = document.find(name);
  if (member == document.end() || !member->is_string()) {
    return false;
  }
  *value = member->get_ref<const std::string&>();
  return value->size() <= limit;
}

gw_status Connection::open(const std::string& path, Patience* patience) {
  path_ = path;
  reader_ = wire::FrameReader();
  descriptors_.clear();
  gone_.store(false, std::memory_order_relaxed);
  hung_up_ = false;
  return reach(path, patience, still_ms_, &socket_);
}

std::string Connection::gone_sentence() const {
  return say("gradwired at ", path_,
             " closed the connection: it ended, crashed or was restarted; look at its log (journalctl -u "
             "gradwired) and join again");
}

std::string Connection::still_sentence(int64_t quiet_ms) const {
  return say(
      "gradwired at ", path_, " stands still: it has not moved for ", quiet_ms,
      " ms, so it is stopped or wedged; look at `gradwire status` and `systemctl status gradwired`, then "
      "`systemctl restart gradwired` and join again");
}

gw_status Connection::misfit(std::string_view type, size_t descriptors, std::string_view due,
                             size_t due_descriptors) {
  set_gone();
  return fail(GW_ERR_PROTOCOL, say("gradwired at ", path_, " answered \"", excerpt(type, 40), "\" with ",
                                   descriptors, " descriptors where \"", due, "\" with ", due_descriptors,
                                   " was due: its version does not fit libgradwire ", GRADWIRE_VERSION));
}

std::vector<wire::UniqueFd> Connection::claim_descriptors(std::string_view type) {
  const size_t count = std::min(descriptors_of(type), descriptors_.size());
  const auto end = descriptors_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<wire::UniqueFd> claimed(std::make_move_iterator(descriptors_.begin()),
                                      std::make_move_iterator(end));
  descriptors_.erase(descriptors_.begin(), end);
  return claimed;
}

gw_status Connection::request(json message, std::string_view answer_type, size_t descriptors,
                              Deadline deadline, Answer* answer) {
  struct Requesting {
    explicit Requesting(std::atomic<bool>* flag) : flag_(flag) {
      flag_->store(true, std::memory_order_relaxed);
    }
    ~Requesting() { flag_->store(false, std::memory_order_relaxed); }
    std::atomic<bool>* flag_;
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  if (gone()) {
    return fail(GW_ERR_UNAVAILABLE, gone_sentence());
  }
  const uint64_t id = next_id_++;
  message["id"] = id;
  const std::string text = message.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > wire::kMaxDocument) {
    return fail(GW_ERR_INVALID, say("the request takes ", text.size(), " bytes and ", wire::kMaxDocument,
                                    " are possible: use shorter names or fewer layers a bucket"));
  }
  const Requesting requesting(&requesting_);
  Vigil vigil{deadline, Pulse(still_ms_), Probe(path_, still_ms_ / 4)};
  if (const gw_status status = send(wire::encode_frame(text), &vigil); status != GW_OK) {
    return status;
  }
  for (;;) {
    std::string bytes;
    if (const gw_status status = receive(&bytes, &vigil); status != GW_OK) {
      return status;
    }
    std::string type;
    json document = parse_document(bytes, &type);
    if (document.is_discarded()) {
      set_gone();
      return fail(GW_ERR_PROTOCOL,
                  say("what listens at ", path_, " answered something that is not Gradwire's: \"",
                      excerpt(bytes, 40), "\""));
    }
    std::vector<wire::UniqueFd> claimed = claim_descriptors(type);
    if (type == "aborted") {
      std::string cause;
      read_member(document, "message", kMaxSentence, &cause);
      return fail(GW_ERR_ABORTED, abort_sentence(cause));
    }
    uint64_t answered = 0;
    if (!read_member(document, "id", UINT64_MAX, &answered) || answered < id) {
      continue;  // unasked for and unknown, or the late answer to a request that timed out
    }
    if (type == "error" && answered == id) {
      std::string code;
      std::string sentence;
      read_member(document, "code", 64, &code);
      read_member(document, "message", kMaxSentence, &sentence);
      answer->refused = true;
      return fail(status_of_code(code), sentence.empty() ? say("gradwired refused: ", code) : sentence);
    }
    if (type != answer_type || answered != id ||
        (descriptors != kAnyDescriptors && claimed.size() != descriptors)) {
      return misfit(type, claimed.size(), answer_type, descriptors == kAnyDescriptors ? 2 : descriptors);
    }
    answer->document = std::move(document);
    answer->descriptors = std::move(claimed);
    return GW_OK;
  }
}

gw_status Connection::wait_for(short events, Vigil* vigil) {
  for (;;) {
    pollfd entry{socket_.get(), events, 0};
    const int ready = ::poll(&entry, 1, vigil->deadline.poll_ms(Pulse::kLookMs));
    if (ready > 0) {
      return GW_OK;
    }
    if (ready < 0 && errno != EINTR) {
      return fail(GW_ERR_INTERNAL, say("poll failed: ", std::strerror(errno)));
    }
    const int64_t now = now_ns();
    // Relaxed: a sign of life, nothing hangs on it.
    const uint64_t sign =
        heartbeat_ != nullptr ? heartbeat_->load(std::memory_order_relaxed) : vigil->probe.look(now);
    if (vigil->pulse.stands_still(sign, now)) {
      set_gone();
      return fail(GW_ERR_UNAVAILABLE, still_sentence(vigil->pulse.quiet_ms()));
    }
    if (vigil->deadline.passed()) {
      return fail(GW_ERR_TIMEOUT, say("gradwired at ", path_, " did not answer in time"));
    }
  }
}

gw_status Connection::send(std::string_view frame, Vigil* vigil) {
  bool started = false;
  while (!frame.empty()) {
    const auto sent = wire::send_some(socket_.get(), frame);
    if (!sent.ok()) {
      hung_up_ = true;
      set_gone();
      return fail(GW_ERR_UNAVAILABLE, gone_sentence());
    }
    frame.remove_prefix(sent.value());
    started = started || sent.value() > 0;
    if (sent.value() == 0) {
      if (const gw_status status = wait_for(POLLOUT, vigil); status != GW_OK) {
        if (started) {
          set_gone();  // half a document was sent: nothing can follow it
        }
        return status;
      }
    }
  }
  return GW_OK;
}

gw_status Connection::read_available(bool* end_of_file, bool* progress) {
  char buffer[16384];
  const auto received = wire::receive_some(socket_.get(), buffer, &descriptors_);
  if (!received.ok()) {
    hung_up_ = received.status().code() == Code::kUnavailable;
    set_gone();
    return received.status().code() == Code::kUnavailable ? fail(GW_ERR_UNAVAILABLE, gone_sentence())
                                                          : fail(received.status());
  }
  *end_of_file = received.value().end_of_file;
  *progress = received.value().bytes > 0;
  if (const Status fed = reader_.feed(buffer, received.value().bytes); !fed.ok()) {
    set_gone();
    return fail(fed.with_context(say("gradwired at ", path_)));
  }
  return GW_OK;
}

gw_status Connection::receive(std::string* document, Vigil* vigil) {
  for (;;) {
    if (auto next = reader_.next()) {
      *document = std::move(*next);
      return GW_OK;
    }
    bool end_of_file = false;
    bool progress = false;
    if (const gw_status status = read_available(&end_of_file, &progress); status != GW_OK) {
      return status;
    }
    if (end_of_file) {
      hung_up_ = true;
      set_gone();
      return fail(GW_ERR_UNAVAILABLE, gone_sentence());
    }
    if (!progress) {
      if (const gw_status status = wait_for(POLLIN, vigil); status != GW_OK) {
        return status;
      }
    }
  }
}

Connection::News Connection::look(std::string* cause) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return News::kBusy;
  }
  bool end_of_file = gone();
  bool progress = !end_of_file;
  while (progress && !end_of_file) {
    if (read_available(&end_of_file, &progress) != GW_OK) {
      end_of_file = true;
    }
    while (auto bytes = reader_.next()) {
      std::string type;
      const json document = parse_document(*bytes, &type);
      descriptors_.clear();  // of a late answer: nobody waits for it
      if (type == "aborted") {
        read_member(document, "message", kMaxSentence, cause);
        return News::kAborted;
      }
    }
  }
  if (end_of_file) {
    set_gone();
    return News::kGone;
  }
  return News::kNone;
}

}  // namespace gradwire::client
