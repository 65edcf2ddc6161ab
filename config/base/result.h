// Status and Result<T>: how a function of Gradwire says that it failed, across rooms.
//
// A Status carries a code (what a program decides by) and one sentence (what a person reads). The sentence
// names the value, the limit and the remedy, and is written where the fault is first seen; callers may put
// context in front of it with `with_context`. Values are immutable and may be passed between threads.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gradwire {

enum class Code {
  kOk = 0,
  kInvalidArgument,    // the caller's value is wrong and will stay wrong
  kNotFound,           // no such object
  kAlreadyExists,      // the object exists, or the name is taken
  kMismatch,           // two parties disagree on what must be equal
  kResourceExhausted,  // a quota, memory or descriptors ran out
  kUnavailable,        // the other side is not there (now); trying again may help
  kDeadlineExceeded,   // a clock ran out
  kAborted,            // the operation's epoch ended
  kCorrupt,            // bytes from elsewhere break the format
  kPermissionDenied,   // credentials or key are wrong
  kUnsupported,        // valid, but not offered by this build or version
  kInternal,           // a bug of ours
};

constexpr std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kMismatch:
      return "mismatch";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kAborted:
      return "aborted";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kPermissionDenied:
      return "permission_denied";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same failure with "context: " in front; an ok status stays as it is.
  Status with_context(std::string_view context) const {
    return ok() ? *this : Status(code_, std::string(context) + ": " + message_);
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status ok_status() {
  return {};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  // Implicit, so that a function can return a value or a failure as it is.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(T value) : value_(std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {
    assert(!status_.ok() && "a Result without a value needs a failure");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace gradwire

// Leaves the function with the failure of `expr` (a Status), if it failed.
#define GRADWIRE_RETURN_IF_ERROR(expr)                        \
  do {                                                        \
    if (::gradwire::Status status_ = (expr); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)
