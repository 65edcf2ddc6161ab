#include "daemon/control/session.h"

#include <optional>

#include "daemon/control/log.h"
#include "daemon/control/process_age.h"

namespace gradwire::control {
namespace {

constexpr size_t kMaxRendezvous = 255;

// Read before anything else of a join: what else it has depends on the versions.
Status check_trainer_versions(Fields& fields, const NodeInfo& self) {
  const auto protocol = fields.number<uint32_t>("protocol", 0, UINT32_MAX);
  const auto layout_version = fields.number<uint32_t>("layout", 0, UINT32_MAX);
  const std::string version = fields.text("version", 0, 64);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("join"));
  if (protocol == kTrainerProtocol && layout_version == layout::kLayoutVersion) {
    return ok_status();
  }
  const bool trainer_is_older =
      protocol != kTrainerProtocol ? protocol < kTrainerProtocol : layout_version < layout::kLayoutVersion;
  return Status(Code::kUnsupported,
                "the trainer's libgradwire " + version + " speaks protocol " + std::to_string(protocol) +
                    ", layout " + std::to_string(layout_version) + " and gradwired " + self.version +
                    " on node " + self.name + " speaks protocol " + std::to_string(kTrainerProtocol) +
                    ", layout " + std::to_string(layout::kLayoutVersion) + ": " +
                    (trainer_is_older ? "update the trainer's libgradwire to " + self.version
                                      : "update gradwired on this node to " + version));
}

// The request's "id", without building what else it has; 0: none. nullopt: it is no document.
std::optional<uint64_t> id_of(std::string_view text) {
  using Event = Json::parse_event_t;
  const auto shallow = [](int depth, Event event, Json&) {
    return depth == 0 || (event != Event::object_start && event != Event::array_start);
  };
  const Json document = Json::parse(text, shallow, false);
  if (document.is_discarded()) {
    return std::nullopt;
  }
  const auto id = document.is_object() ? document.find("id") : document.end();
  return id != document.end() && id->is_number_unsigned() ? id->get<uint64_t>() : 0;
}

}  // namespace

Status Session::take(std::string_view text) {
  const Result<Json> parsed = parse_document(text);
  if (parsed.ok()) {
    document(*parsed);
    return ok_status();
  }
  const auto id = parsed.status().code() == Code::kInvalidArgument ? id_of(text) : std::nullopt;
  if (!id) {
    return parsed.status();
  }
  fail(*id, parsed.status());  // what asks for too much costs the request, not the job
  return ok_status();
}

void Session::fail(uint64_t id, const Status& status) {
  Json document = failure_document("error", status);
  document["id"] = id;
  send_(document, {});
}

Answer Session::answer_ok(uint64_t id) {
  return later([id](Session& self, const Status& status) {
    self.asking_ = false;
    if (self.state_ == State::kLeft) {
      self.charge_ = nullptr;  // before the answer: who has it may join somewhere else at once
    }
    if (status.ok()) {
      self.send_({{"type", "ok"}, {"id", id}}, {});
    } else {
      self.fail(id, status);
    }
  });
}

void Session::document(const Json& document) {
  Fields fields(document);
  const std::string type = fields.text("type", 1, 64);
  const auto id = fields.number("id", 0, uint64_t{1} << 53);
  if (!fields.ok()) {
    fail(0, fields.status());
    return;
  }
  if (asking_ && type == "state_close" && !closing_) {
    closing_ = id;
    return;
  }
  if (asking_) {
    fail(id, Status(Code::kInvalidArgument, "a request is outstanding; wait for its answer"));
    return;
  }
  dispatch(id, type, document);
}

void Session::dispatch(uint64_t id, const std::string& type, const Json& document) {
  if (type == "join") {
    join(id, document);
    return;
  }
  const bool known = type == "bucket_create" || type == "bucket_destroy" || type == "traffic" ||
                     type == "leave" || is_state_request(type);
  if (!known) {
    fail(id, Status(Code::kUnsupported, "the request '" + clean(type, 40) + "' is unknown to this daemon"));
    return;
  }
  if (state_ != State::kJoined) {
    fail(id, Status(Code::kInvalidArgument, "'" + type + "' needs a job: join first, and not after a leave"));
    return;
  }
  if (is_state_request(type)) {
    state_request(id, type, document);
  } else if (type == "bucket_create") {
    create_bucket(id, document);
  } else if (type == "bucket_destroy") {
    Fields fields(document);
    const auto bucket = fields.number<uint32_t>("bucket", 1, UINT32_MAX);
    if (!fields.ok()) {
      fail(id, fields.status());
      return;
    }
    asking_ = true;
    member_->destroy_bucket(rank_, bucket, answer_ok(id));
  } else if (type == "traffic") {
    asking_ = true;
    member_->traffic(later([id](Session& self, const Result<Traffic>& traffic) {
      self.asking_ = false;
      if (!traffic.ok()) {
        self.fail(id, traffic.status());
        return;
      }
      self.send_({{"type", "traffic"},
                  {"id", id},
                  {"operations", traffic->operations},
                  {"raw_bytes", traffic->raw_bytes},
                  {"wire_bytes", traffic->wire_bytes}},
                 {});
    }));
  } else {
    end_state();
    asking_ = true;
    state_ = State::kLeft;
    member_->leave(rank_, answer_ok(id));
  }
}

void Session::join(uint64_t id, const Json& document) {
  if (state_ != State::kFresh) {
    fail(id, Status(Code::kAlreadyExists, "this connection has joined before; open another one"));
    return;
  }
  Fields fields(document);
  if (const Status status = check_trainer_versions(fields, node_.self); !status.ok()) {
    fail(id, status.code() == Code::kCorrupt ? Status(Code::kInvalidArgument, status.message()) : status);
    return;
  }
  JobIdentity identity;
  identity.uid = uid_;
  identity.name = fields.text("job", 1, kMaxJobName);
  identity.run_id = fields.text("run_id", 0, kMaxJobName);
  LocalJoin join;
  join.world = fields.number<uint32_t>("world", 1, kMaxWorld);
  join.rank = fields.number<uint32_t>("rank", 0, kMaxWorld - 1);
  const std::string rendezvous = fields.text("rendezvous", 0, kMaxRendezvous);
  join.timeout_ms = fields.number("timeout_ms", 0, uint64_t{1} << 40);
  join.fresh = fields.flag("fresh");
  if (!fields.ok()) {
    fail(id, Status(Code::kInvalidArgument, "join: " + fields.status().message()));
    return;
  }
  if (join.rank >= join.world) {
    fail(id,
         Status(Code::kInvalidArgument, "rank " + std::to_string(join.rank) +
                                            " is not below the world size " + std::to_string(join.world)));
    return;
  }
  auto charge = node_.quotas->charge_session(uid_);
  if (!charge.ok()) {
    fail(id, charge.status());
    return;
  }
  charge_ = std::move(*charge);
  if (join.timeout_ms == 0) {
    join.timeout_ms = node_.self.operation_timeout_ms;
  }
  join.pid = pid_;
  join.session = number_;
  join.age_ms = process_age_ms(pid_);
  join.gone = probe_;
  join.placed = later([](Session& self, const std::shared_ptr<Member>& member) { self.member_ = member; });
  join.aborted = later([](Session& self, const Status& cause) {
    Json aborted = failure_document("aborted", cause);
    aborted["code"] = code_name(Code::kAborted);
    self.send_(aborted, {});
  });
  rank_ = join.rank;
  state_ = State::kJoining;
  asking_ = true;
  const auto self = shared_from_this();
  members_.join(identity, rendezvous, std::move(join),
                later([id](Session& session, const Result<Joined>& joined) { session.joined(id, joined); }));
}

void Session::joined(uint64_t id, const Result<Joined>& joined) {
  asking_ = false;
  if (!joined.ok()) {
    state_ = State::kFresh;  // it may try again
    charge_ = nullptr;
    member_ = nullptr;
    fail(id, joined.status());
    return;
  }
  state_ = State::kJoined;
  SessionMemory& session = *joined->session;
  Json answer = {{"type", "joined"},
                 {"id", id},
                 {"layout", layout::kLayoutVersion},
                 {"version", node_.self.version},
                 {"session_bytes", session.memory->bytes()},
                 {"local_ranks", joined->local_ranks},
                 {"nodes", joined->nodes},
                 {"peer_timeout_ms", node_.self.peer_timeout_ms},
                 {"operation_timeout_ms", node_.self.operation_timeout_ms},
                 {"epoch", joined->epoch}};
  if (joined->past) {
    answer["past"] = merged_past_document(*joined->past);
  }
  send_(answer, {session.memory->fd(), std::move(session.trainer_bell)});
  session.memory->forget_fd();
}

void Session::create_bucket(uint64_t id, const Json& document) {
  const Result<Manifest> manifest = read_manifest(document);
  if (!manifest.ok()) {
    fail(id, manifest.status());
    return;
  }
  asking_ = true;
  member_->create_bucket(rank_, *manifest, later([id](Session& self, const Result<BucketCreated>& created) {
                           self.asking_ = false;
                           if (!created.ok()) {
                             self.fail(id, created.status());
                             return;
                           }
                           self.send_({{"type", "bucket_created"},
                                       {"id", id},
                                       {"bucket", created->bucket},
                                       {"codec", created->codec},
                                       {"gradient_bytes", created->gradient_bytes},
                                       {"result_bytes", created->result_bytes}},
                                      {created->gradient, created->result});
                         }));
}

void Session::gone(const std::string& why) {
  closed_ = true;
  charge_ = nullptr;
  end_state();
  if ((state_ == State::kJoining || state_ == State::kJoined) && member_) {
    if (!member_->over()) {
      log_warning("trainer_gone",
                  {{"rank", std::to_string(rank_)}, {"job", member_->identity().name}, {"why", why}});
    }
    member_->trainer_gone(rank_, why, number_);
  }
  member_ = nullptr;
}

}  // namespace gradwire::control
