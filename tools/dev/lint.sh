#!/bin/bash
# clang-format over all sources, file sizes, and clang-tidy over what is not a test.
#   lint.sh [--fix] [--deep]    --fix rewrites the format; --deep adds clang's path-sensitive analyzer (slow)
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -t sources < <(git ls-files '*.h' '*.hpp' '*.cc' '*.c')
fix=no checks=-clang-analyzer-*
for argument in "$@"; do
  case $argument in
    --fix) fix=yes ;;
    --deep) checks= ;;
    *)
      echo "lint.sh: unknown argument '$argument'; known: --fix --deep" >&2
      exit 2
      ;;
  esac
done
if [ $fix = yes ]; then
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

# A database of its own: clang cannot read g++'s precompiled headers.
cmake --preset lint >/dev/null
# clang-tidy reads a dozen files of a room at once, which parses their headers once.
mapfile -t units < <(grep -oE '"file": "[^"]*/Unity/[^"]*"' build/lint/compile_commands.json | cut -d'"' -f4 | grep -v /tests/)
count=$(cat "${units[@]}" | grep -c '#include')
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 1 \
  clang-tidy -p build/lint --config-file=.clang-tidy --quiet --checks="-bugprone-suspicious-include,$checks" \
  --extra-arg=-Wno-unknown-warning-option 2>/dev/null
echo "lint: clang-tidy is content with $count files"
