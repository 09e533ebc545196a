#!/bin/bash
# Renders a kustomization and checks it, offline, against the types of Kubernetes and against itself (schema.mjs,
# sums.mjs): check_manifests.sh BUILD_DIRECTORY [--test] [KUSTOMIZATION]
# By default deploy/kubernetes. With --test also shows that the checks find what is broken on purpose, and that
# the server takes the options that the pods give it. Ends with status 77 where a tool is missing, which
# `scripts/setup.sh --deploy` installs. The packages are installed once, from the npm registry.
set -euo pipefail
build=$(realpath "$1")
shift
self_test=
if [[ ${1:-} == --test ]]; then
  self_test=yes
  shift
fi
here=$(realpath "$(dirname "$0")")
kustomization=${1:-$here/../../deploy/kubernetes}

for tool in node npm kubectl; do
  command -v "$tool" >/dev/null || {
    echo "SKIPPED: $tool is not installed (scripts/setup.sh --deploy)"
    exit 77
  }
done

packages=$build/manifest_checks
mkdir -p "$packages"
if ! cmp -s "$here/package-lock.json" "$packages/installed"; then
  rm -f "$packages/installed"
  cp "$here/package.json" "$here/package-lock.json" "$packages/"
  npm ci --prefix "$packages" --ignore-scripts --no-audit --no-fund --loglevel=error
  cp "$here/package-lock.json" "$packages/installed"
fi

rendered=$packages/rendered.yaml
kubectl kustomize "$kustomization" >"$rendered"
node "$here/check_manifests.mjs" "$packages" "$rendered"
[[ -n $self_test ]] || exit 0

NPM_DIRECTORY=$packages MANIFESTS=$rendered node --test "$here/manifests_test.mjs"

# The pods' options, as the server reads them; only the ports are others here.
mapfile -t options < <(sed -n 's/^ *- \(--[a-z_]*=.*\)$/\1/p' "$rendered")
ready=$packages/ready
rm -f "$ready"
"$build/server/attnd" "${options[@]}" --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 --drain_delay=0 \
  --ready_file="$ready" 2>"$packages/log" &
server=$!
for ((tries = 0; tries < 100; ++tries)); do
  [[ -s $ready ]] && break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
kill -TERM "$server" 2>/dev/null || true
status=0
wait "$server" || status=$?
if [[ ! -s $ready ]] || ((status != 0 || ${#options[@]} == 0)); then
  echo "the server does not take ${options[*]} (status $status):" >&2
  cat "$packages/log" >&2
  exit 1
fi
echo "the server takes ${options[*]}"
