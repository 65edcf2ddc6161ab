// How the waiting side sleeps, and what it looks at when it wakes.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "client/src/error.h"
#include "client/src/job.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

// Takes the rings that have come; false at the end of the file: the daemon has closed its end.
bool silence_bell(int fd) {
  char rings[64];
  for (;;) {
    const ssize_t bytes = ::recv(fd, rings, sizeof(rings), MSG_DONTWAIT);
    if (bytes == 0 || (bytes < 0 && errno == ECONNRESET)) {
      return false;
    }
    // What a flood leaves behind only ends the next sleep early.
    if (bytes > 0 || errno != EINTR) {
      return true;
    }
  }
}

}  // namespace

gw_status look_at_socket(gw_job* job) {
  std::string cause;
  switch (job->connection.look(&cause)) {
    case Connection::News::kAborted:
      if (const gw_status status = ended(job); status != GW_OK) {
        return status;
      }
      return end_job(job, GW_ERR_ABORTED, abort_sentence(cause));
    case Connection::News::kGone:
      if (const gw_status status = ended(job); status != GW_OK) {
        return status;
      }
      return end_job(job, GW_ERR_UNAVAILABLE, job->connection.gone_sentence());
    default:
      return ended(job);
  }
}

gw_status look_at_pulse(gw_job* job) {
  // Relaxed: a sign of life, nothing hangs on it.
  const uint64_t heartbeat = job->header->daemon_heartbeat_ns.load(std::memory_order_relaxed);
  if (!job->pulse.stands_still(heartbeat, now_ns())) {
    return GW_OK;
  }
  if (const gw_status status = ended(job); status != GW_OK) {
    return status;
  }
  job->connection.set_gone();
  return end_job(job, GW_ERR_UNAVAILABLE, job->connection.still_sentence(job->pulse.quiet_ms()));
}

gw_status sleep(gw_job* job, Deadline deadline) {
  if (!job->completions.prepare_sleep()) {
    return GW_OK;
  }
  if (const gw_status status = ended(job); status != GW_OK) {
    job->completions.cancel_sleep();
    return status;
  }
  pollfd entries[2] = {{job->bell.get(), POLLIN, 0}, {job->connection.fd(), POLLRDHUP, 0}};
  if (!job->connection.requesting()) {
    entries[1].events |= POLLIN;  // else the answer is the requester's business
  }
  const int ready = ::poll(entries, 2, deadline.poll_ms(Pulse::kLookMs));
  job->completions.cancel_sleep();
  if (ready < 0 && errno != EINTR) {
    return fail(GW_ERR_INTERNAL, say("poll failed: ", std::strerror(errno)));
  }
  const bool closed = ready > 0 && entries[0].revents != 0 && !silence_bell(job->bell.get());
  if (ready > 0 && (closed || entries[1].revents != 0) && !job->completions.ready()) {
    if (const gw_status status = look_at_socket(job); status != GW_OK) {
      return status;
    }
    if (closed || (entries[1].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
      return end_job(job, GW_ERR_UNAVAILABLE, job->connection.gone_sentence());
    }
  }
  return GW_OK;
}

}  // namespace gradwire::client
