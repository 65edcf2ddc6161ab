#!/bin/bash
# build.sh PRESET [TARGET...]: configures and builds one preset; uses ccache where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
preset=$1
shift
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
if ! log=$(cmake --preset "$preset" "${launcher[@]}" 2>&1); then
  printf '%s\n' "$log" >&2
  exit 1
fi
sed -n '/^-- gradwire /,/^-- Configuring done/p' <<<"$log"
cmake --build --preset "$preset" ${1:+--target "$@"}
