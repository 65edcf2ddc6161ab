#!/bin/bash
# clang-format over all sources, file sizes, and clang-tidy over what the release preset compiles.
#   lint.sh [--fix]    --fix rewrites the format
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -t sources < <(git ls-files '*.h' '*.hpp' '*.cc' '*.c')
if [ "${1:-}" = --fix ]; then
  clang-format -i "${sources[@]}"
else
  clang-format --dry-run -Werror "${sources[@]}"
fi
echo "lint: clang-format is content with ${#sources[@]} files"

long=$(git ls-files '*.h' '*.hpp' '*.cc' '*.py' | xargs wc -l | awk '$2 != "total" && $1 > 600 {print $2 ": " $1 " lines"}')
if [ -n "$long" ]; then
  printf 'lint: files over 600 lines must be split:\n%s\n' "$long" >&2
  exit 1
fi

[ -f build/release/compile_commands.json ] || tools/dev/build.sh release gradwire_config >/dev/null
mapfile -t units < <(git ls-files 'config/*.cc' 'compress/*.cc' 'transport/*.cc' 'client/*.cc' 'daemon/*.cc' 'tools/*.cc')
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy -p build/release --quiet 2>/dev/null
echo "lint: clang-tidy is content with ${#units[@]} files"
