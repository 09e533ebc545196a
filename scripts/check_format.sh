#!/bin/bash
# Names the C++ files that clang-format would change and fails if there are any; with --fix, changes them.
set -euo pipefail
cd "$(dirname "$0")/.."
files() { find proto engine server client tests \( -name '*.h' -o -name '*.cc' \) -print0; }

if [[ ${1:-} == --fix ]]; then
  files | xargs -0 clang-format-14 -i
elif ! report=$(files | xargs -0 clang-format-14 --dry-run -Werror 2>&1); then
  echo "not formatted (make format):" >&2
  { grep -E '^[^ ]+: error: ' <<<"$report" || echo "$report"; } | cut -d: -f1 | sort -u >&2
  exit 1
fi
