// How long a process has lived.
#pragma once

#include <cstdint>

namespace gradwire::control {

// Milliseconds since it was started, in steps of 10; 0: it is gone, or not seen from this pid namespace. A
// new process is at least 1.
uint64_t process_age_ms(int32_t pid);

}  // namespace gradwire::control
