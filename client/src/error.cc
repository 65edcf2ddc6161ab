#include "client/src/error.h"

#include <cstring>

#include "client/src/text.h"
#include "config/base/one_line.h"

namespace gradwire::client {
namespace {

// Plain bytes: no destructor that would have to run at a thread's end after dlclose.
constexpr size_t kSentenceBytes = 2048;
thread_local char last_sentence[kSentenceBytes] = "no failure yet";

gw_status status_of(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return GW_OK;
    case Code::kInvalidArgument:
    case Code::kAlreadyExists:
      return GW_ERR_INVALID;
    case Code::kNotFound:
      return GW_ERR_NOT_FOUND;
    case Code::kMismatch:
      return GW_ERR_MISMATCH;
    case Code::kResourceExhausted:
      return GW_ERR_EXHAUSTED;
    case Code::kUnavailable:
      return GW_ERR_UNAVAILABLE;
    case Code::kDeadlineExceeded:
      return GW_ERR_TIMEOUT;
    case Code::kAborted:
      return GW_ERR_ABORTED;
    case Code::kCorrupt:
      return GW_ERR_PROTOCOL;
    case Code::kPermissionDenied:
      return GW_ERR_PERMISSION;
    case Code::kUnsupported:
      return GW_ERR_UNSUPPORTED;
    case Code::kInternal:
      return GW_ERR_INTERNAL;
  }
  return GW_ERR_PROTOCOL;
}

}  // namespace

gw_status fail(gw_status status, std::string_view sentence) noexcept {
  const std::string_view shown = beginning(sentence, kSentenceBytes - 1);
  std::memmove(last_sentence, shown.data(), shown.size());
  last_sentence[shown.size()] = '\0';
  return status;
}

gw_status fail(const Status& status) noexcept {
  return fail(status_of(status.code()), status.message());
}

gw_status check_text(std::string_view what, std::string_view text) {
  const auto bad = find_control(text);
  if (!bad) {
    return GW_OK;
  }
  const std::string_view kind = first_character(text.substr(*bad)).bytes > 0
                                    ? " holds a control character at byte "
                                    : " is not UTF-8 from byte ";
  return fail(GW_ERR_INVALID, say(what, kind, *bad, ": UTF-8 text without control characters is allowed"));
}

gw_status status_of_code(std::string_view name) noexcept {
  for (int code = 1; code <= static_cast<int>(Code::kInternal); ++code) {
    if (code_name(static_cast<Code>(code)) == name) {
      return status_of(static_cast<Code>(code));
    }
  }
  return GW_ERR_PROTOCOL;
}

}  // namespace gradwire::client

const char* gw_last_error(void) {
  return gradwire::client::last_sentence;
}

const char* gw_version(void) {
  return GRADWIRE_VERSION;
}

const char* gw_status_name(gw_status status) {
  static constexpr const char* kNames[] = {"ok",          "invalid", "not_found", "mismatch",   "exhausted",
                                           "unavailable", "timeout", "aborted",   "permission", "unsupported",
                                           "busy",        "forked",  "protocol",  "internal"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == GW_ERR_INTERNAL + 1);
  return status >= GW_OK && status <= GW_ERR_INTERNAL ? kNames[status] : "unknown";
}
