// gw_join, gw_leave and what is asked of a job as a whole.
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>

#include "client/src/error.h"
#include "client/src/exit.h"
#include "client/src/job.h"
#include "client/src/session.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

constexpr int64_t kJoinMarginMs = 2000;  // the daemon's own time-out names who is missing: let it be first
constexpr uint64_t kMaxClockMs = uint64_t{1} << 40;
constexpr size_t kDescriptors = 2;  // of a joined answer: the session's memory and the bell

// Negative: `ours` is older than `theirs`. 0: the same, or not to be told.
int compare_versions(std::string_view ours, std::string_view theirs) {
  for (int part = 0; part < 3; ++part) {
    int left = 0;
    int right = 0;
    const auto a = std::from_chars(ours.data(), ours.data() + ours.size(), left);
    const auto b = std::from_chars(theirs.data(), theirs.data() + theirs.size(), right);
    if (a.ec != std::errc() || b.ec != std::errc()) {
      return 0;
    }
    if (left != right) {
      return left < right ? -1 : 1;
    }
    ours.remove_prefix(std::min<size_t>(static_cast<size_t>(a.ptr - ours.data()) + 1, ours.size()));
    theirs.remove_prefix(std::min<size_t>(static_cast<size_t>(b.ptr - theirs.data()) + 1, theirs.size()));
  }
  return 0;
}

// Which side to update; `difference` as of compare_versions.
const char* update_advice(int difference) {
  return difference > 0   ? "update gradwired on this node"
         : difference < 0 ? "update the libgradwire that this program uses"
                          : "install the same version of both";
}

gw_status refuse_answer(const gw_job& job, const char* member) {
  return fail(GW_ERR_PROTOCOL,
              say("gradwired ", job.daemon_version, " at ", job.connection.path(),
                  " answered without a valid \"", member, "\", which libgradwire ", GRADWIRE_VERSION,
                  " needs: ", update_advice(compare_versions(GRADWIRE_VERSION, job.daemon_version))));
}

gw_status refuse_layout(const gw_job& job, uint64_t layout) {
  return fail(GW_ERR_PROTOCOL,
              say("gradwired ", job.daemon_version, " uses layout ", layout, " and libgradwire ",
                  GRADWIRE_VERSION, " knows layout ", layout::kLayoutVersion, ": ",
                  update_advice(layout < layout::kLayoutVersion ? 1 : -1)));
}

// The times and ranks of a joined answer.
gw_status read_figures(gw_job* job, const json& document) {
  uint64_t peer_timeout = 0;
  uint64_t operation_timeout = 0;
  if (!read_member(document, "peer_timeout_ms", kMaxClockMs, &peer_timeout)) {
    return refuse_answer(*job, "peer_timeout_ms");
  }
  if (!read_member(document, "operation_timeout_ms", kMaxClockMs, &operation_timeout)) {
    return refuse_answer(*job, "operation_timeout_ms");
  }
  const auto ranks = document.find("local_ranks");
  if (ranks == document.end() || !ranks->is_array() || ranks->empty() ||
      ranks->size() > static_cast<size_t>(job->identity.world)) {
    return refuse_answer(*job, "local_ranks");
  }
  if (!read_member(document, "epoch", UINT64_MAX, &job->epoch) || job->epoch == 0) {
    return refuse_answer(*job, "epoch");
  }
  if (!read_past(document, job->epoch, job->identity.world, &job->past)) {
    return refuse_answer(*job, "past");
  }
  job->local_ranks = static_cast<int32_t>(ranks->size());
  job->peer_timeout_ms = static_cast<int64_t>(peer_timeout);
  job->operation_timeout_ms = static_cast<int64_t>(operation_timeout);
  return GW_OK;
}

gw_status take_bell(gw_job* job, wire::UniqueFd bell) {
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(bell.get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    return fail(GW_ERR_PROTOCOL, say("the bell from gradwired ", job->daemon_version,
                                     " is no stream socket, which libgradwire ", GRADWIRE_VERSION, " needs"));
  }
  job->bell = std::move(bell);
  return GW_OK;
}

gw_status read_joined(gw_job* job, Answer* answer) {
  const json& document = answer->document;
  uint64_t layout = 0;
  uint64_t session_bytes = 0;
  std::string version;
  if (!read_member(document, "version", 64, &version)) {
    return refuse_answer(*job, "version");
  }
  job->daemon_version = excerpt(version, 64);
  if (!read_member(document, "layout", UINT32_MAX, &layout)) {
    return refuse_answer(*job, "layout");
  }
  // Before all that depends on it.
  if (layout != layout::kLayoutVersion) {
    return refuse_layout(*job, layout);
  }
  if (answer->descriptors.size() != kDescriptors) {
    return job->connection.misfit("joined", answer->descriptors.size(), "joined", kDescriptors);
  }
  if (!read_member(document, "session_bytes", uint64_t{1} << 40, &session_bytes)) {
    return refuse_answer(*job, "session_bytes");
  }
  if (const gw_status status = read_figures(job, document); status != GW_OK) {
    return status;
  }
  if (const gw_status status = map_session(job, answer->descriptors[0].get(), session_bytes);
      status != GW_OK) {
    return status;
  }
  return take_bell(job, std::move(answer->descriptors[1]));
}

// Asks to join, until it is answered or refused.
gw_status ask(gw_job* job, Answer* answer) {
  const Identity& identity = job->identity;
  const json message{{"type", "join"},
                     {"protocol", kProtocol},
                     {"layout", layout::kLayoutVersion},
                     {"version", GRADWIRE_VERSION},
                     {"job", identity.job},
                     {"run_id", identity.run_id},
                     {"rank", identity.rank},
                     {"world", identity.world},
                     {"rendezvous", identity.rendezvous},
                     {"timeout_ms", identity.timeout_ms},
                     {"fresh", identity.fresh}};
  Patience patience(identity.wait_ms);
  for (;;) {
    if (const gw_status status = job->connection.open(identity.socket, &patience); status != GW_OK) {
      return status;
    }
    const Deadline deadline =
        identity.timeout_ms > 0 ? Deadline::after_ms(identity.timeout_ms + kJoinMarginMs) : Deadline::never();
    const gw_status status =
        job->connection.request(message, "joined", Connection::kAnyDescriptors, deadline, answer);
    // A daemon that is being restarted hangs up first.
    if (status != GW_ERR_UNAVAILABLE || !job->connection.hung_up() || patience.over()) {
      return status;
    }
    patience.pause();
  }
}

gw_status explain_refusal(const Identity& identity, const Answer& answer, gw_status status) {
  const std::string sentence = gw_last_error();
  if (status == GW_ERR_TIMEOUT && !answer.refused) {
    return fail(status, say("job ", identity.job, " was not complete within ", identity.timeout_ms,
                            " ms, and gradwired at ", identity.socket, " does not say who is missing"));
  }
  // Whatever a daemon of another time says, the reader learns which library asked.
  if (status == GW_ERR_UNSUPPORTED && sentence.find(GRADWIRE_VERSION) == std::string::npos) {
    return fail(status, say(sentence, " (gradwired's words to libgradwire ", GRADWIRE_VERSION, ", protocol ",
                            kProtocol, ", layout ", layout::kLayoutVersion, ")"));
  }
  return status;
}

gw_status join(const gw_join_options* given, gw_job** out) {
  gw_join_options options{};
  if (const gw_status status = read_options(given, &options); status != GW_OK) {
    return status;
  }
  auto job = std::make_unique<gw_job>();
  Identity& identity = job->identity;
  if (const gw_status status = resolve_identity(
          options, [](const char* n) { return std::getenv(n); }, &identity);
      status != GW_OK) {
    return status;
  }
  if (!job->fork_guard.arm()) {
    return fail(GW_ERR_UNSUPPORTED, "the kernel has no MADV_WIPEONFORK: Linux 4.14 or newer is needed");
  }
  const char* spin = std::getenv("GRADWIRE_SPIN");
  job->spin = spin == nullptr || std::strcmp(spin, "0") != 0;
  job->barrier.job = job.get();
  job->barrier.name = "barrier";
  job->barrier.id = layout::kBarrierBucket;
  job->barrier.slot = job->buckets.add(&job->barrier);
  job->barrier.dtype = GW_FLOAT32;  // 0 in the submission

  Answer answer;
  if (const gw_status status = ask(job.get(), &answer); status != GW_OK) {
    return explain_refusal(identity, answer, status);
  }
  if (const gw_status bad = read_joined(job.get(), &answer); bad != GW_OK) {
    return bad;
  }
  const int64_t still_ms = job->peer_timeout_ms + kMarginMs;
  job->connection.watch(&job->header->daemon_heartbeat_ns, still_ms);
  job->pulse = Pulse(still_ms);
  if (identity.leave_at_exit) {
    leave_at_exit(job.get());
  }
  *out = job.release();
  return GW_OK;
}

void free_job(gw_job* job) {
  forget_at_exit(job);
  job->buckets.for_each([job](gw_bucket* bucket) {
    if (bucket != &job->barrier) {
      delete bucket;
    }
  });
  delete job;
}

gw_status traffic(gw_job* job, gw_traffic* out) {
  if (out == nullptr || out->struct_size < sizeof(size_t)) {
    return fail(GW_ERR_INVALID, "gw_traffic.struct_size must be set to sizeof(gw_traffic)");
  }
  if (const gw_status status = ended(job); status != GW_OK) {
    return status;
  }
  Answer answer;
  if (const gw_status status = explain(
          job, job->connection.request({{"type", "traffic"}}, "traffic", 0, daemon_deadline(*job), &answer));
      status != GW_OK) {
    return status;
  }
  gw_traffic known{};
  known.struct_size = out->struct_size;
  if (!read_member(answer.document, "operations", UINT64_MAX, &known.operations)) {
    return refuse_answer(*job, "operations");
  }
  if (!read_member(answer.document, "raw_bytes", UINT64_MAX, &known.raw_bytes)) {
    return refuse_answer(*job, "raw_bytes");
  }
  if (!read_member(answer.document, "wire_bytes", UINT64_MAX, &known.wire_bytes)) {
    return refuse_answer(*job, "wire_bytes");
  }
  std::memcpy(out, &known, std::min(out->struct_size, sizeof(known)));
  return GW_OK;
}

}  // namespace

gw_status leave(gw_job* job) {
  gw_status status = ended(job);
  Answer answer;
  if (status == GW_OK) {
    status =
        explain(job, job->connection.request({{"type", "leave"}}, "ok", 0, daemon_deadline(*job), &answer));
  } else if (!job->connection.gone()) {
    // The epoch is over for everybody; a word of goodbye is enough and its answer does not matter.
    (void)job->connection.request({{"type", "leave"}}, "ok", 0, Deadline::after_ms(0), &answer);
    (void)ended(job);
  }
  return status == GW_ERR_ABORTED ? GW_OK : status;
}

}  // namespace gradwire::client

using namespace gradwire::client;  // NOLINT(google-build-using-namespace): this file is the library's edge

gw_status gw_join(const gw_join_options* options, gw_job** job) {
  if (job == nullptr) {
    return fail(GW_ERR_INVALID, "the place for the job is NULL");
  }
  *job = nullptr;
  return at_the_edge([&] { return join(options, job); });
}

gw_status gw_leave(gw_job* job) {
  return at_the_edge([&]() -> gw_status {
    gw_status status = check_handle(job);
    if (job == nullptr) {
      return status;
    }
    if (status == GW_OK) {
      if (!job->submitting.enter()) {
        return refuse_second_thread("submitting");
      }
      if (!job->waiting.enter()) {
        job->submitting.leave();
        return refuse_second_thread("waiting");
      }
      status = at_the_edge([&] { return leave(job); });
    }
    free_job(job);
    return status;
  });
}

int32_t gw_rank(const gw_job* job) {
  return check_handle(job) == GW_OK ? job->identity.rank : -1;
}

int32_t gw_world(const gw_job* job) {
  return check_handle(job) == GW_OK ? job->identity.world : -1;
}

int32_t gw_local_ranks(const gw_job* job) {
  return check_handle(job) == GW_OK ? job->local_ranks : -1;
}

gw_status gw_job_traffic(gw_job* job, gw_traffic* out) {
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(job); status != GW_OK) {
      return status;
    }
    const SideLock side(&job->submitting);
    return side.entered() ? traffic(job, out) : refuse_second_thread("submitting");
  });
}
