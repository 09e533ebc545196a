#!/bin/bash
# Starts the server on free ports, runs the demo on tests/data against it, stops it and checks that it
# stops cleanly. run_demo.sh [BUILD_DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
work=$(mktemp -d)
server=

finish() {
  if [[ -n $server ]]; then
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

fail() {
  echo "run_demo: $1; the server's log ends with:" >&2
  tail -n 20 "$work/log" >&2
  exit 1
}

"$build/server/attnd" --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 --ready_file="$work/ready" \
  >"$work/log" 2>&1 &
server=$!
for ((tries = 0; tries < 300; ++tries)); do
  [[ -s $work/ready ]] && break
  kill -0 "$server" 2>/dev/null || fail "the server ended while starting"
  sleep 0.1
done
[[ -s $work/ready ]] || fail "the server was not ready within 30 seconds"
grpc=$(sed -n 's/^grpc=//p' "$work/ready")
http=$(sed -n 's/^http=//p' "$work/ready")

echo "attnd listens on $grpc (gRPC) and $http (HTTP)"
"$build/client/demo/attnd_demo" --server="$grpc" --metrics="$http" --data=tests/data ||
  fail "the demo failed"

kill -TERM "$server"
for ((tries = 0; tries < 300; ++tries)); do
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
! kill -0 "$server" 2>/dev/null || fail "the server still runs 30 seconds after SIGTERM"
status=0
wait "$server" || status=$?
server=
((status == 0)) || fail "the server ended with status $status after SIGTERM"
echo "attnd stopped cleanly"
