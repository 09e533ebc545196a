#!/bin/bash
# Runs a program built with a sanitizer: run_sanitized.sh PROGRAM [ARGUMENTS...]
# The sanitizers of clang 14 fail at start where the kernel randomises addresses by more than 28 bits,
# so randomisation is turned off where that is allowed (some containers forbid it).
set -euo pipefail
if setarch --addr-no-randomize true 2>/dev/null; then
  exec setarch --addr-no-randomize "$@"
fi
exec "$@"
