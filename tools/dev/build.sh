#!/bin/bash
# build.sh PRESET [TARGET...]: configures and builds one preset with all cores; uses ccache where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
preset=$1
shift
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
cmake --preset "$preset" "${launcher[@]}" >"${TMPDIR:-/tmp}/gradwire-configure-$preset.$$" 2>&1 || {
  cat "${TMPDIR:-/tmp}/gradwire-configure-$preset.$$"
  rm -f "${TMPDIR:-/tmp}/gradwire-configure-$preset.$$"
  exit 1
}
sed -n '/^-- gradwire /,$p' "${TMPDIR:-/tmp}/gradwire-configure-$preset.$$"
rm -f "${TMPDIR:-/tmp}/gradwire-configure-$preset.$$"
cmake --build --preset "$preset" ${1:+--target "$@"}
