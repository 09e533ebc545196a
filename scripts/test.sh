#!/bin/bash
# Builds the release, asan and tsan trees and runs every test once, in one ctest run at the end.
# The container image is built and run where podman and debootstrap are there, and skipped where they are not.
# With --full also the long tests, the linter and the tests as built by g++, and what the image needs is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}

trees=(release asan tsan)
select=(--label-exclude '^long$')
if [[ ${1:-} == --full ]]; then
  scripts/setup.sh --deploy
  trees+=(gcc)
  select=()
fi

for tree in "${trees[@]}"; do
  echo "== build $tree"
  cmake --preset "$tree" >/dev/null
  cmake --build --preset "$tree"
done

echo "== test"
# ctest looks for the tests of a program that was just built only when it starts.
ctest --test-dir build/release --parallel "$CMAKE_BUILD_PARALLEL_LEVEL" --output-on-failure \
  --no-tests=error "${select[@]}"
