#!/bin/bash
# Builds the fuzz targets with clang and runs each for a while on a copy of its corpus; stops at a crash.
#   fuzz.sh [SECONDS [TARGET...]]   10 seconds a target and all targets unless said otherwise
# What makes a target crash is kept in build/findings.
#   fuzz.sh --merge TARGET FOLDER   adds the inputs of FOLDER to tests/fuzz/corpus/TARGET that reach code it does not
set -euo pipefail
cd "$(dirname "$0")/../.."

# Before anything is built: is there a clang with libFuzzer?
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/probe.cc"
if ! clang++ -fsanitize=fuzzer,address,undefined "$probe/probe.cc" -o "$probe/probe" 2>/dev/null; then
  echo "SKIP: fuzz: clang++ with libFuzzer is missing (Debian: clang and libclang-rt-14-dev)"
  exit 0
fi

bin=build/asan/tests/fuzz
findings=build/findings
mkdir -p "$findings"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

if [ "${1:-}" = --merge ]; then
  [ $# -eq 3 ] || { echo "fuzz.sh: --merge needs a target and a folder" >&2; exit 2; }
  tools/dev/build.sh asan "fuzz_$2" >/dev/null
  "$bin/fuzz_$2" -merge=1 "tests/fuzz/corpus/$2" "$3"
  exit
fi

seconds=${1:-10}
[[ $seconds =~ ^[0-9]+$ ]] || { echo "fuzz.sh: '$seconds' is no number of seconds" >&2; exit 2; }
targets=("${@:2}")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <(ls tests/fuzz/corpus)
fi
for target in "${targets[@]}"; do
  [ -d "tests/fuzz/corpus/$target" ] || { echo "fuzz.sh: there is no target '$target'; known:" tests/fuzz/corpus/* >&2; exit 2; }
done

tools/dev/build.sh asan "${targets[@]/#/fuzz_}" | tail -n 1

run_target() { # TARGET
  local target=$1 log=$probe/$1.log
  cp -r "tests/fuzz/corpus/$target" "$probe/$target"
  if "$bin/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$findings/$target-" "$probe/$target" >"$log" 2>&1; then
    printf 'fuzz: %-10s %s inputs, %s features\n' "$target" \
      "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
      "$(sed -nE 's/.* ft: ([0-9]+) .*/\1/p' "$log" | tail -n 1)"
    return 0
  fi
  local artifact
  artifact=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  grep -vE '^#[0-9]+' "$log" | tail -n 60
  echo "fuzz: $target crashed; again: $bin/fuzz_$target $artifact"
  return 255  # xargs starts no other
}
export -f run_target
export bin findings probe seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_target {}'
echo "fuzz: ${#targets[@]} targets ran $seconds seconds each without a crash"
