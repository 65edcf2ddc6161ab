// GRADWIRE_HOT marks leaf loops that are compiled once per x86-64 level and chosen at load time.
//
// Results do not depend on the level: sums have a fixed order and -ffp-contract=off forbids fused operations.
// Sanitizers cannot run before the resolvers do, so their builds take the plain version.
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(GRADWIRE_SANITIZED)
#define GRADWIRE_HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GRADWIRE_HOT
#endif

// Iterations are independent although the pointers may be equal (sums in place).
#if defined(__GNUC__) && !defined(__clang__)
#define GRADWIRE_INDEPENDENT _Pragma("GCC ivdep")
#else
#define GRADWIRE_INDEPENDENT
#endif
