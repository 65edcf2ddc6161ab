#!/bin/bash
# Sets up, builds and runs the tests: source checks, sanitizer builds, then everything in release.
#   test.sh            all of it, as CI does
#   test.sh PART...    some of: lint asan fuzz tsan release
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=$(nproc)
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(lint asan fuzz tsan release)

export ASAN_OPTIONS=detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

step() { printf '\n=== %s (%s)\n' "$*" "$(date +%H:%M:%S)"; }

test_preset() { # PRESET CTEST_ARGUMENTS...
  local preset=$1 status=0
  shift
  local output
  output=$(mktemp)
  ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure "$@" >"$output" || status=1
  # What failed, and why; then what was skipped; ctest's own summary comes last.
  sed '/tests passed,/,$d' "$output" | grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test .* Passed)' || true
  tools/dev/skipped.py "build/$preset/Testing/Temporary/LastTest.log" || true
  sed -n '/tests passed,/,$p' "$output"
  rm -f "$output"
  return $status
}

run_lint() {
  step "source checks"
  tools/dev/lint.sh
}
run_fuzz() {
  step "fuzz targets, ten seconds each"
  tools/dev/fuzz.sh
}
# Long runs that watch a statistic settle, in code that other tests reach, too: release runs them.
statistics='^((Dense|Sparse)Codecs/(Sparse)?Bias[.]|NormOfTheGradient[.]Grows|Calibration[.](MeetsThe|Follows)|Direct[.]MeetsItsDensity|Sparse[.]DensitySettles|Planner[.]IsNever)'

run_asan() {
  step "address and undefined-behaviour sanitizers: unit and sim suites, but for tests of statistics"
  tools/dev/build.sh asan
  test_preset asan -L 'unit|sim' -E "$statistics"
}
run_tsan() {
  step "thread sanitizer: rings and the engine on the simulated network"
  tools/dev/build.sh tsan gradwire_thread_tests
  test_preset tsan -L thread
}
run_release() {
  step "release: everything"
  tools/dev/build.sh release
  test_preset release
}

tools/dev/setup.sh
for part in "${parts[@]}"; do
  case $part in
    lint | fuzz | asan | tsan | release) "run_$part" ;;
    *)
      echo "test.sh: unknown part '$part'; known: lint asan fuzz tsan release" >&2
      exit 2
      ;;
  esac
done
