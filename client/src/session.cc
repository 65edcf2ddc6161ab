// The shared memory of a session, and the state that both sides of a job share.
#include "client/src/session.h"

#include "client/src/error.h"
#include "client/src/text.h"

namespace gradwire::client {

using layout::Completion;
using layout::SessionHeader;
using layout::Submission;

namespace {

bool ring_fits(uint64_t offset, uint64_t capacity, uint64_t entry, uint64_t total) {
  return offset % layout::kCacheLine == 0 && offset >= sizeof(SessionHeader) && offset <= total &&
         capacity * entry <= total - offset;
}

}  // namespace

gw_status map_session(gw_job* job, int fd, uint64_t announced_bytes) {
  if (announced_bytes < sizeof(SessionHeader)) {
    return fail(GW_ERR_PROTOCOL, say("gradwired announced a session of ", announced_bytes,
                                     " bytes; its header has ", sizeof(SessionHeader)));
  }
  if (const gw_status status = job->memory.map(fd, announced_bytes, true, "the session's memory");
      status != GW_OK) {
    return status;
  }
  auto* header = static_cast<SessionHeader*>(job->memory.address());
  const uint64_t capacity = header->ring_capacity;
  const uint64_t submissions = header->submission_offset;
  const uint64_t completions = header->completion_offset;
  if (header->magic != layout::kSessionMagic) {
    return fail(GW_ERR_PROTOCOL, "the session's memory from gradwired does not start with its mark");
  }
  if (header->layout_version != layout::kLayoutVersion) {
    return fail(GW_ERR_PROTOCOL,
                say("gradwired ", job->daemon_version, " uses layout ", header->layout_version,
                    " in the session's memory and libgradwire ", GRADWIRE_VERSION, " knows layout ",
                    layout::kLayoutVersion, ": install the same version of both"));
  }
  const uint64_t total = announced_bytes;
  const bool apart = submissions + capacity * sizeof(Submission) <= completions ||
                     completions + capacity * sizeof(Completion) <= submissions;
  if (header->total_bytes != total || capacity == 0 || capacity > (1u << 20) ||
      (capacity & (capacity - 1)) != 0 || !ring_fits(submissions, capacity, sizeof(Submission), total) ||
      !ring_fits(completions, capacity, sizeof(Completion), total) || !apart || header->generation == 0) {
    return fail(GW_ERR_PROTOCOL,
                say("the session's memory from gradwired contradicts itself: ", total, " bytes, rings of ",
                    capacity, " at ", submissions, " and ", completions));
  }
  if (header->rank != static_cast<uint32_t>(job->identity.rank) ||
      header->world != static_cast<uint32_t>(job->identity.world)) {
    return fail(GW_ERR_PROTOCOL,
                say("gradwired gave the session of rank ", header->rank, " of ", header->world, " to rank ",
                    job->identity.rank, " of ", job->identity.world));
  }
  // Both ends count from 0 in a new session; relaxed: the descriptor's way here ordered it.
  if (header->submissions.tail.load(std::memory_order_relaxed) != 0 ||
      header->completions.head.load(std::memory_order_relaxed) != 0) {
    return fail(GW_ERR_PROTOCOL, "the session from gradwired has been used before");
  }
  auto* base = static_cast<char*>(job->memory.address());
  job->header = header;
  job->capacity = static_cast<uint32_t>(capacity);
  job->submissions = {&header->submissions, reinterpret_cast<Submission*>(base + submissions), job->capacity};
  job->completions = {&header->completions, reinterpret_cast<const Completion*>(base + completions),
                      job->capacity};
  return GW_OK;
}

BucketTable::~BucketTable() {
  for (auto& chunk : chunks_) {
    delete chunk.load(std::memory_order_relaxed);
  }
}

uint32_t BucketTable::add(gw_bucket* bucket) {
  for (uint32_t i = 0; i < kChunks; ++i) {
    Chunk* chunk = chunks_[i].load(std::memory_order_relaxed);  // this side wrote it
    if (chunk == nullptr) {
      chunk = new Chunk{};
      chunks_[i].store(chunk, std::memory_order_release);  // pairs with find
    }
    for (uint32_t j = 0; j < kChunk; ++j) {
      if ((*chunk)[j].load(std::memory_order_relaxed) == nullptr) {
        (*chunk)[j].store(bucket, std::memory_order_release);  // pairs with find
        return i * kChunk + j;
      }
    }
  }
  return kNone;
}

void BucketTable::remove(uint32_t slot) {
  (*chunks_[slot / kChunk].load(std::memory_order_relaxed))[slot % kChunk].store(nullptr,
                                                                                 std::memory_order_release);
}

gw_status check_handle(const gw_job* job) {
  if (job == nullptr) {
    return fail(GW_ERR_INVALID, "the job is NULL; gw_join gives one");
  }
  if (job->fork_guard.in_child()) {
    return fail(GW_ERR_FORKED, say("this job (", job->identity.job, ", rank ", job->identity.rank,
                                   ") belongs to the parent process: a child must gw_join by itself"));
  }
  return GW_OK;
}

gw_status check_handle(const gw_bucket* bucket) {
  if (bucket == nullptr) {
    return fail(GW_ERR_INVALID, "the bucket is NULL; gw_bucket_create gives one");
  }
  return check_handle(bucket->job);
}

gw_status refuse_second_thread(const char* side) {
  return fail(GW_ERR_BUSY,
              say("another thread is on the ", side, " side of this job; one thread at a time may be there"));
}

gw_status end_job(gw_job* job, gw_status status, std::string_view sentence) {
  {
    const std::lock_guard<std::mutex> lock(job->failure_mutex);
    if (job->failed.load(std::memory_order_relaxed) == GW_OK) {
      job->failure = sentence;
      job->failed.store(status, std::memory_order_release);
    }
  }
  return ended(job);
}

gw_status ended(gw_job* job) {
  // Acquire pairs with end_job's release.
  if (const gw_status failed = job->failed.load(std::memory_order_acquire); failed != GW_OK) {
    const std::lock_guard<std::mutex> lock(job->failure_mutex);
    return fail(failed, job->failure);
  }
  // Acquire pairs with the daemon's release after it wrote the cause.
  if (job->header->abort_status.load(std::memory_order_acquire) != GW_OK) {
    const char* cause = job->header->abort_cause;
    const std::string_view text(cause, ::strnlen(cause, layout::kCauseBytes));
    return end_job(job, GW_ERR_ABORTED, abort_sentence(text));
  }
  return GW_OK;
}

gw_status explain(gw_job* job, gw_status status) {
  if (status != GW_ERR_ABORTED && status != GW_ERR_UNAVAILABLE && status != GW_ERR_PROTOCOL) {
    return status;
  }
  const std::string sentence = gw_last_error();
  if (const gw_status end = ended(job); end != GW_OK) {
    return end;
  }
  return status == GW_ERR_ABORTED || job->connection.gone() ? end_job(job, status, sentence)
                                                            : fail(status, sentence);
}

}  // namespace gradwire::client
