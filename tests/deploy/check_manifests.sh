#!/bin/bash
# Renders a kustomization and checks it, offline, against the types of Kubernetes and against itself (schema.mjs,
# sums.mjs): check_manifests.sh BUILD_DIRECTORY [--test] [KUSTOMIZATION]
# By default deploy/kubernetes. With --test also runs manifests_test.mjs: the checks find what is broken on purpose,
# and the server takes the options that the pods give it. Ends with status 77 where a tool is missing, which
# `scripts/setup.sh --deploy` installs, or the npm registry, from which the packages are installed once.
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

skip() {
  echo "SKIPPED: $1"
  exit 77
}
for tool in node npm kubectl; do
  command -v "$tool" >/dev/null || skip "$tool is not installed (scripts/setup.sh --deploy)"
done

packages=$build/manifest_checks
mkdir -p "$packages"
if ! cmp -s "$here/package-lock.json" "$packages/installed"; then
  rm -f "$packages/installed"
  cp "$here/package.json" "$here/package-lock.json" "$packages/"
  if ! npm ci --prefix "$packages" --ignore-scripts --no-audit --no-fund --loglevel=error; then
    npm view yaml version >/dev/null 2>&1 || skip "the npm registry cannot be reached"
    echo "check_manifests: the packages of package-lock.json cannot be installed" >&2
    exit 1
  fi
  cp "$here/package-lock.json" "$packages/installed"
fi

rendered=$packages/rendered.yaml
kubectl kustomize "$kustomization" >"$rendered"
node "$here/check_manifests.mjs" "$packages" "$rendered"
[[ -n $self_test ]] || exit 0

NPM_DIRECTORY=$packages MANIFESTS=$rendered SERVER=$build/server/attnd node --test "$here/manifests_test.mjs"
