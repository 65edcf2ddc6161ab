// The fakes of the unit tests speak through GoogleTest: what they complain of must end a fuzz target.
#include <gtest/gtest.h>

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  GTEST_FLAG_SET(break_on_failure, true);
  return 0;
}
