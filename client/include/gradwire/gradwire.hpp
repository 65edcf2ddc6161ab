// gradwire.hpp: gradwire.h for C++17 and later, with owners instead of handles.
//
// Nothing here throws except for lack of memory; every call returns a gradwire::Outcome that holds a
// gw_status and its sentence. The rules of gradwire.h (threads, lifetimes, time-outs) hold unchanged. A
// Bucket must not outlive its Job.
#ifndef GRADWIRE_GRADWIRE_HPP_
#define GRADWIRE_GRADWIRE_HPP_

#include <gradwire/gradwire.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradwire {

class [[nodiscard]] Outcome {
 public:
  Outcome() = default;
  explicit Outcome(gw_status status)
      : status_(status), message_(status == GW_OK ? std::string() : std::string(gw_last_error())) {}

  bool ok() const { return status_ == GW_OK; }
  explicit operator bool() const { return ok(); }
  gw_status status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  gw_status status_ = GW_OK;
  std::string message_;
};

struct JoinOptions {
  std::string job, run_id, socket;  // empty: from the environment
  const char* rendezvous = nullptr;
  int32_t rank = -1;
  int32_t world = -1;
  int64_t timeout_ms = 0;
  int64_t wait_ms = 0;         // for a daemon that is not there yet
  bool fresh = false;          // drop what the daemons kept of this job: one rank's is enough
  bool leave_at_exit = false;  // GW_JOIN_LEAVE_AT_EXIT: std::exit(0) does not destroy a Job on the stack
};

struct Layer {
  std::string name;
  uint64_t elements = 0;
};

class Bucket {
 public:
  Bucket() = default;
  Bucket(Bucket&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Bucket& operator=(Bucket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Bucket() { (void)destroy(); }

  Outcome allreduce(gw_reduce_op op = GW_AVERAGE, double scale = 1.0) {
    return Outcome(gw_allreduce_scaled(handle_, op, scale));
  }
  Outcome flush(gw_reduce_op op = GW_AVERAGE, double scale = 1.0) {
    return Outcome(gw_flush_scaled(handle_, op, scale));
  }
  Outcome broadcast(int32_t root) { return Outcome(gw_broadcast(handle_, root)); }
  Outcome allgather() { return Outcome(gw_allgather(handle_)); }
  Outcome reduce_scatter(gw_reduce_op op = GW_AVERAGE) { return Outcome(gw_reduce_scatter(handle_, op)); }
  Outcome shard(int32_t rank, uint64_t* first, uint64_t* elements) const {
    return Outcome(gw_bucket_shard(handle_, rank, first, elements));
  }
  Outcome wait(int64_t timeout_ms = -1, uint32_t* flags = nullptr) {
    return Outcome(gw_wait(handle_, timeout_ms, flags));
  }
  Outcome test(bool* done, uint32_t* flags = nullptr) {
    int value = 0;
    Outcome outcome(gw_test(handle_, &value, flags));
    *done = value != 0;
    return outcome;
  }
  Outcome destroy() {
    return handle_ == nullptr ? Outcome() : Outcome(gw_bucket_destroy(std::exchange(handle_, nullptr)));
  }

  template <typename Element>
  Element* gradient() const {
    return static_cast<Element*>(gw_bucket_gradient(handle_));
  }
  template <typename Element>
  const Element* result() const {
    return static_cast<const Element*>(gw_bucket_result(handle_));
  }
  uint64_t elements() const { return gw_bucket_elements(handle_); }
  uint64_t bytes() const { return gw_bucket_bytes(handle_); }
  std::string codec() const { return gw_bucket_codec(handle_); }
  gw_bucket* handle() const { return handle_; }

 private:
  friend class Job;
  gw_bucket* handle_ = nullptr;
};

class Job {
 public:
  Job() = default;
  Job(Job&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Job& operator=(Job&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Job() { (void)leave(); }

  Outcome join(const JoinOptions& options = {}) {
    gw_join_options raw{};
    raw.struct_size = sizeof(raw);
    raw.job = options.job.empty() ? nullptr : options.job.c_str();
    raw.run_id = options.run_id.empty() ? nullptr : options.run_id.c_str();
    raw.socket = options.socket.empty() ? nullptr : options.socket.c_str();
    raw.rendezvous = options.rendezvous;
    raw.rank = options.rank;
    raw.world = options.world;
    raw.timeout_ms = options.timeout_ms;
    raw.wait_ms = options.wait_ms;
    raw.flags = 0;
    if (options.fresh) {
      raw.flags |= GW_JOIN_FRESH;
    }
    if (options.leave_at_exit) {
      raw.flags |= GW_JOIN_LEAVE_AT_EXIT;
    }
    if (Outcome left = leave(); !left) {
      return left;
    }
    return Outcome(gw_join(&raw, &handle_));
  }
  Outcome leave() {
    return handle_ == nullptr ? Outcome() : Outcome(gw_leave(std::exchange(handle_, nullptr)));
  }

  Outcome create_bucket(const std::string& name, gw_dtype dtype, const std::vector<Layer>& layers,
                        uint32_t flags, Bucket* bucket) {
    std::vector<gw_layer> raw;
    raw.reserve(layers.size());
    for (const Layer& layer : layers) {
      raw.push_back({layer.name.c_str(), layer.elements});
    }
    Bucket created;
    Outcome outcome(
        gw_bucket_create(handle_, name.c_str(), dtype, raw.data(), raw.size(), flags, &created.handle_));
    if (outcome) {
      *bucket = std::move(created);
    }
    return outcome;
  }
  Outcome barrier(int64_t timeout_ms = -1) { return Outcome(gw_barrier(handle_, timeout_ms)); }
  Outcome traffic(gw_traffic* traffic) {
    traffic->struct_size = sizeof(*traffic);
    return Outcome(gw_job_traffic(handle_, traffic));
  }

  // The compression state of this node, for a checkpoint; rules and errors are those of gw_state_save and
  // gw_state_load, and so is the submitting side that both belong to. write(data, size) and read(data, size),
  // callable objects or functions, are as gw_state_write and gw_state_read without `user`; what they throw
  // stops the call with GW_ERR_INVALID.
  template <typename Write>
  Outcome save_state(Write&& write) {
    using Function = std::remove_reference_t<Write>;
    if constexpr (std::is_function_v<Function>) {
      return save_state(&write);  // a pointer is an object, whose address fits a void*
    } else {
      return save_through<Function>(&write);
    }
  }
  template <typename Read>
  Outcome load_state(Read&& read) {
    using Function = std::remove_reference_t<Read>;
    if constexpr (std::is_function_v<Function>) {
      return load_state(&read);
    } else {
      return load_through<Function>(&read);
    }
  }

  // GW_ERR_NOT_FOUND in a job's first epoch, and for a bucket that the one before did not have.
  Outcome previous_epoch(const std::string& bucket, gw_progress* progress) const {
    progress->struct_size = sizeof(*progress);
    return Outcome(gw_previous_epoch(handle_, bucket.c_str(), progress));
  }

  uint64_t epoch() const { return gw_epoch(handle_); }
  int32_t rank() const { return gw_rank(handle_); }
  int32_t world() const { return gw_world(handle_); }
  int32_t local_ranks() const { return gw_local_ranks(handle_); }
  gw_job* handle() const { return handle_; }

 private:
  template <typename Function>
  Outcome save_through(Function* write) {
    return Outcome(gw_state_save(
        handle_,
        [](void* user, const void* data, size_t size) noexcept -> int {
          try {
            return (*static_cast<Function*>(user))(data, size);
          } catch (...) {
            return -1;
          }
        },
        const_cast<std::remove_const_t<Function>*>(write)));
  }
  template <typename Function>
  Outcome load_through(Function* read) {
    return Outcome(gw_state_load(
        handle_,
        [](void* user, void* data, size_t size) noexcept -> int64_t {
          try {
            return (*static_cast<Function*>(user))(data, size);
          } catch (...) {
            return -1;
          }
        },
        const_cast<std::remove_const_t<Function>*>(read)));
  }

  gw_job* handle_ = nullptr;
};

}  // namespace gradwire

#endif  // GRADWIRE_GRADWIRE_HPP_
