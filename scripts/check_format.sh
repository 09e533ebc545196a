#!/bin/bash
# Fails when clang-format would change a C++ file; with --fix, changes them.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(--dry-run -Werror)
[[ ${1:-} == --fix ]] && mode=(-i)
find engine server client tests \( -name '*.h' -o -name '*.cc' \) -print0 |
  xargs -0 --no-run-if-empty clang-format-14 "${mode[@]}"
