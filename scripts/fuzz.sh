#!/bin/bash
# Runs a libFuzzer program for a while: fuzz.sh PROGRAM SECONDS [CORPUS]. The corpus is only read.
# An input that breaks the program is kept beside it as found-*.
set -euo pipefail
program=$1
seconds=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(dirname "$0")/run_sanitized.sh" "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix="$(dirname "$program")/found-" "$work" "${@:3}" 2>&1 | tail -n 60
