#!/bin/bash
# Installs on Debian 12 what is missing of:
#   setup.sh           what building, testing and linting need
#   setup.sh --build   only what building the programs needs, as the image's build stage does
#   setup.sh --deploy  what the tests of deploy/ need: building and running an image, checking manifests
# Does nothing when all is there.
set -euo pipefail

build=(
  clang-14 cmake mold ninja-build pkg-config
  # libraries; oneDNN's CMake package asks for the OpenCL loader
  libabsl-dev libcli11-dev libdnnl-dev libgoogle-perftools-dev libgrpc++-dev libhwy-dev
  libprotobuf-dev librocksdb-dev libspdlog-dev libssl-dev libxxhash-dev ocl-icd-opencl-dev prometheus-cpp-dev
  protobuf-compiler protobuf-compiler-grpc zlib1g-dev
)
develop=(
  # tools
  ca-certificates ccache clang-format-14 clang-tidy-14 clang-tools-14 curl g++ git
  libclang-rt-14-dev llvm-14 make python3 shellcheck
  # tests and benchmarks
  libbenchmark-dev libgmock-dev libgtest-dev
)
image=(debootstrap podman runc)
# The command and the package that brings it on Debian. These also come from elsewhere, under other
# names of packages, so it is the command that counts.
manifests=(node:nodejs npm:npm kubectl:kubernetes-client)

packages=()
commands=()
case ${1:-} in
  '') packages=("${build[@]}" "${develop[@]}") ;;
  --build) packages=("${build[@]}") ;;
  --deploy)
    packages=("${image[@]}")
    commands=("${manifests[@]}")
    ;;
  *)
    echo "setup: '$1' is unknown; it must be --build, --deploy or nothing" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
for entry in "${commands[@]}"; do
  command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: run as root or install sudo; missing packages: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}"
