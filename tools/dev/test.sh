#!/bin/bash
# Sets up, builds and runs the tests: source checks, sanitizer builds, then everything in release.
#   test.sh            all of it, as CI does
#   test.sh PART...    some of: lint asan tsan release
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=$(nproc)
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(lint asan tsan release)

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:handle_segv=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

step() { echo; echo "=== $* ($(date +%H:%M:%S))"; }

run_lint() {
  step "clang-format and clang-tidy"
  tools/dev/lint.sh
}
run_asan() {
  step "address and undefined-behaviour sanitizers: unit and sim suites"
  tools/dev/build.sh asan
  ctest --test-dir build/asan -L 'unit|sim' -j "$jobs" --output-on-failure
}
run_tsan() {
  step "thread sanitizer: rings and the engine on the simulated network"
  tools/dev/build.sh tsan gradwire_thread_tests
  ctest --test-dir build/tsan -L thread -j "$jobs" --output-on-failure
}
run_release() {
  step "release: everything"
  tools/dev/build.sh release
  # Cluster tests measure clocks of seconds with several processes each: one at a time.
  local status=0
  ctest --test-dir build/release -LE cluster -j "$jobs" --output-on-failure || status=1
  ctest --test-dir build/release -L cluster -j 1 --output-on-failure || status=1
  return $status
}

tools/dev/setup.sh
for part in "${parts[@]}"; do
  case $part in
    lint | asan | tsan | release) "run_$part" ;;
    *)
      echo "test.sh: unknown part '$part'; known: lint asan tsan release" >&2
      exit 2
      ;;
  esac
done
