#!/bin/bash
# clang-format, shellcheck, then clang-tidy over every file of the release build, or over those whose path
# matches the arguments (regular expressions): lint.sh [PATTERN...]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/check_format.sh
shellcheck scripts/*.sh tests/deploy/*.sh .ci/run
cmake --preset release >/dev/null
cmake --build --preset release --target attnd_proto >/dev/null # the generated headers
patterns=("$@")
if ((${#patterns[@]} == 0)); then
  patterns=("$PWD/(proto|engine|server|client|tests)/")
fi
run-clang-tidy-14 -quiet -p build/release "${patterns[@]}" 2>&1 | sed 's/\x1b\[[0-9;]*m//g' |
  { grep -Ev '^(clang-tidy-14 |[0-9]+ warnings? (generated|treated))' || true; }
