// The fakes of the unit tests speak through GoogleTest: what they complain of must end a fuzz target.
#pragma once

#include <gtest/gtest.h>

namespace gradwire::fuzz {

inline void complaints_abort() {
  GTEST_FLAG_SET(break_on_failure, true);
}

}  // namespace gradwire::fuzz
