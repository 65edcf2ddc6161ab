// gw_join, gw_leave and what is asked of a job as a whole.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "client/src/error.h"
#include "client/src/job.h"
#include "client/src/session.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

constexpr int64_t kJoinMarginMs = 2000;  // the daemon's own time-out names who is missing: let it be first
constexpr uint64_t kMaxClockMs = uint64_t{1} << 40;

gw_status refuse_answer(const gw_job& job, const char* member) {
  return fail(GW_ERR_PROTOCOL, say("gradwired at ", job.connection.path(), " answered without a valid \"",
                                   member, "\": its version does not fit libgradwire ", GRADWIRE_VERSION));
}

gw_status read_joined(gw_job* job, const Answer& answer) {
  const json& document = answer.document;
  uint64_t layout = 0;
  uint64_t session_bytes = 0;
  uint64_t peer_timeout = 0;
  uint64_t operation_timeout = 0;
  std::string version;
  if (!read_member(document, "version", 64, &version)) {
    return refuse_answer(*job, "version");
  }
  if (!read_member(document, "layout", UINT32_MAX, &layout)) {
    return refuse_answer(*job, "layout");
  }
  if (layout != layout::kLayoutVersion) {
    return fail(GW_ERR_PROTOCOL, say("gradwired ", excerpt(version, 64), " uses layout ", layout,
                                     " and libgradwire ", GRADWIRE_VERSION, " knows layout ",
                                     layout::kLayoutVersion, ": install the same version of both"));
  }
  if (!read_member(document, "session_bytes", uint64_t{1} << 40, &session_bytes)) {
    return refuse_answer(*job, "session_bytes");
  }
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
  job->local_ranks = static_cast<int32_t>(ranks->size());
  job->peer_timeout_ms = static_cast<int64_t>(peer_timeout);
  job->operation_timeout_ms = static_cast<int64_t>(operation_timeout);
  return map_session(job, answer.descriptors[0].get(), session_bytes);
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
  job->barrier.dtype = GW_UINT8;

  const Deadline deadline =
      identity.timeout_ms > 0 ? Deadline::after_ms(identity.timeout_ms + kJoinMarginMs) : Deadline::never();
  if (const gw_status status = job->connection.open(identity.socket, deadline); status != GW_OK) {
    return status;
  }
  Answer answer;
  const gw_status status = job->connection.request({{"type", "join"},
                                                    {"protocol", kProtocol},
                                                    {"layout", layout::kLayoutVersion},
                                                    {"version", GRADWIRE_VERSION},
                                                    {"job", identity.job},
                                                    {"run_id", identity.run_id},
                                                    {"rank", identity.rank},
                                                    {"world", identity.world},
                                                    {"rendezvous", identity.rendezvous},
                                                    {"timeout_ms", identity.timeout_ms}},
                                                   "joined", 2, deadline, &answer);
  if (status == GW_ERR_TIMEOUT && std::strstr(gw_last_error(), "did not answer") != nullptr) {
    return fail(status, say("job ", identity.job, " was not complete within ", identity.timeout_ms,
                            " ms, and gradwired at ", identity.socket, " does not say who is missing"));
  }
  if (status != GW_OK) {
    return status;
  }
  if (const gw_status bad = read_joined(job.get(), answer); bad != GW_OK) {
    return bad;
  }
  job->bell = std::move(answer.descriptors[1]);
  *out = job.release();
  return GW_OK;
}

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

void free_job(gw_job* job) {
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
