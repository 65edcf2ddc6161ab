// What the compiler cannot see about plain loops. The vectorised ones are in compress/cpu.
#pragma once

// Iterations are independent although the pointers may be equal (sums in place).
#if defined(__GNUC__) && !defined(__clang__)
#define GRADWIRE_INDEPENDENT _Pragma("GCC ivdep")
#else
#define GRADWIRE_INDEPENDENT
#endif
