// The calling thread's last failure, and the edge that no exception crosses.
#pragma once

#include <new>
#include <string_view>
#include <utility>

#include "client/include/gradwire/gradwire.h"
#include "config/base/result.h"

namespace gradwire::client {

// Notes the sentence for gw_last_error and returns `status`.
gw_status fail(gw_status status, std::string_view sentence) noexcept;
gw_status fail(const Status& status) noexcept;

// The gw_status of a code of the control protocol ("mismatch"); GW_ERR_PROTOCOL for an unknown one.
gw_status status_of_code(std::string_view code_name) noexcept;

// GW_ERR_INVALID unless `text`, which sentences call `what`, is UTF-8 without control characters.
gw_status check_text(std::string_view what, std::string_view text);

template <typename Body>
gw_status at_the_edge(Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return fail(GW_ERR_EXHAUSTED, "this process has no memory left for what the call needs");
  } catch (...) {
    return fail(GW_ERR_INTERNAL, "an unexpected exception inside libgradwire: please report it");
  }
}

}  // namespace gradwire::client
