// The compression state of this node, saved and loaded through a window of the daemon's memory.
#include <string>

#include "client/src/error.h"
#include "client/src/job.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

constexpr uint64_t kMaxWindow = uint64_t{1} << 30;

gw_status misunderstood() {
  return fail(GW_ERR_PROTOCOL,
              say("gradwired described a compression state in a way that libgradwire ", GRADWIRE_VERSION,
                  " does not understand: install the same version of both"));
}

// One transfer, which the daemon forgets when this goes.
class Transfer {
 public:
  explicit Transfer(gw_job* job) : job_(job) {}
  ~Transfer() {
    if (!open_) {
      return;
    }
    try {
      // What the caller hears is the failure before this.
      const std::string sentence = gw_last_error();
      Answer answer;
      // It needs nobody else, so who does not answer it in this time stands still.
      (void)ask({{"type", "state_close"}}, "ok", 0, &answer,
                Deadline::after_ms(job_->peer_timeout_ms + kMarginMs));
      (void)fail(GW_OK, sentence);
    } catch (...) {  // out of memory: the daemon forgets the transfer with the session
      open_ = false;
    }
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  gw_status open(const char* direction) {
    open_ = true;
    Answer answer;
    if (const gw_status status =
            ask({{"type", "state_open"}, {"direction", direction}}, "state_opened", 1, &answer);
        status != GW_OK) {
      return status;
    }
    uint64_t bytes = 0;
    if (!read_member(answer.document, "window_bytes", kMaxWindow, &bytes)) {
      return misunderstood();
    }
    return window_.map(answer.descriptors[0].get(), bytes, true, "the window for a compression state");
  }
  gw_status next(uint64_t* bytes, bool* last) {
    Answer answer;
    if (const gw_status status = ask({{"type", "state_next"}}, "state_part", 0, &answer); status != GW_OK) {
      return status;
    }
    const auto end = answer.document.find("last");
    if (!read_member(answer.document, "bytes", window_.bytes(), bytes) || end == answer.document.end() ||
        !end->is_boolean() || (*bytes == 0 && !end->get<bool>())) {
      return misunderstood();
    }
    *last = end->get<bool>();
    return GW_OK;
  }
  gw_status put(uint64_t bytes, bool last) {
    Answer answer;
    return ask({{"type", "state_put"}, {"bytes", bytes}, {"last", last}}, "ok", 0, &answer);
  }
  void done() { open_ = false; }

  void* address() const { return window_.address(); }
  uint64_t window() const { return window_.bytes(); }

 private:
  gw_status ask(nlohmann::json request, const char* type, size_t descriptors, Answer* answer) {
    return ask(std::move(request), type, descriptors, answer, daemon_deadline(*job_));
  }
  gw_status ask(nlohmann::json request, const char* type, size_t descriptors, Answer* answer,
                Deadline deadline) {
    const gw_status status =
        explain(job_, job_->connection.request(std::move(request), type, descriptors, deadline, answer));
    // A refusal ends it, too; after a time-out the daemon still has it, and may yet open it.
    open_ = open_ && !answer->refused && status != GW_ERR_ABORTED;
    return status;
  }

  gw_job* job_;
  bool open_ = false;
  Mapping window_;
};

gw_status check_idle(gw_job* job) {
  const gw_bucket* busy = nullptr;
  job->buckets.for_each([&busy](const gw_bucket* bucket) {
    // Acquire pairs with the waiting side's store of idle.
    if (bucket->state.load(std::memory_order_acquire) != kIdle) {
      busy = bucket;
    }
  });
  return busy == nullptr
             ? GW_OK
             : fail(GW_ERR_BUSY, say("bucket ", busy->name,
                                     " has an operation that has not been waited for: gw_wait for "
                                     "all operations before the state is saved"));
}

gw_status save(gw_job* job, gw_state_write write, void* user) {
  if (const gw_status status = ended(job); status != GW_OK) {
    return status;
  }
  if (const gw_status status = check_idle(job); status != GW_OK) {
    return status;
  }
  Transfer transfer(job);
  if (const gw_status status = transfer.open("save"); status != GW_OK) {
    return status;
  }
  for (bool last = false; !last;) {
    uint64_t bytes = 0;
    if (const gw_status status = transfer.next(&bytes, &last); status != GW_OK) {
      return status;
    }
    if (last) {
      transfer.done();
    }
    if (const int failure = bytes == 0 ? 0 : write(user, transfer.address(), bytes); failure != 0) {
      return fail(GW_ERR_INVALID, say("the write function returned ", failure,
                                      ", so what it has of the compression state is of no use"));
    }
  }
  return GW_OK;
}

gw_status load(gw_job* job, gw_state_read read, void* user) {
  if (const gw_status status = ended(job); status != GW_OK) {
    return status;
  }
  Transfer transfer(job);
  if (const gw_status status = transfer.open("load"); status != GW_OK) {
    return status;
  }
  for (bool last = false; !last;) {
    uint64_t filled = 0;
    while (filled < transfer.window() && !last) {
      const uint64_t room = transfer.window() - filled;
      const int64_t got = read(user, static_cast<char*>(transfer.address()) + filled, room);
      if (got < 0 || static_cast<uint64_t>(got) > room) {
        return fail(GW_ERR_INVALID, say("the read function returned ", got, " where 0 to ", room,
                                        " bytes were asked for, so no compression state was loaded"));
      }
      filled += static_cast<uint64_t>(got);
      last = got == 0;
    }
    if (const gw_status status = transfer.put(filled, last); status != GW_OK) {
      return status;
    }
  }
  transfer.done();
  return GW_OK;
}

template <typename Body>
gw_status on_submitting_side(gw_job* job, bool callable, Body&& body) {
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(job); status != GW_OK) {
      return status;
    }
    if (!callable) {
      return fail(GW_ERR_INVALID, "the function that moves the compression state's bytes is NULL");
    }
    const SideLock side(&job->submitting);
    return side.entered() ? body() : refuse_second_thread("submitting");
  });
}

}  // namespace
}  // namespace gradwire::client

using namespace gradwire::client;  // NOLINT(google-build-using-namespace): this file is the library's edge

gw_status gw_state_save(gw_job* job, gw_state_write write, void* user) {
  return on_submitting_side(job, write != nullptr, [&] { return save(job, write, user); });
}

gw_status gw_state_load(gw_job* job, gw_state_read read, void* user) {
  return on_submitting_side(job, read != nullptr, [&] { return load(job, read, user); });
}
