#!/bin/bash
# Installs what building, testing and linting need on Debian 12. Does nothing when all is there.
set -euo pipefail

packages=(
  # tools
  ca-certificates ccache clang-14 clang-format-14 clang-tidy-14 clang-tools-14 cmake curl g++ git
  libclang-rt-14-dev llvm-14 make mold ninja-build pkg-config python3 shellcheck
  # libraries; oneDNN's CMake package asks for the OpenCL loader
  libabsl-dev libcli11-dev libdnnl-dev libgoogle-perftools-dev libgrpc++-dev libhwy-dev
  libprotobuf-dev libspdlog-dev libssl-dev libxxhash-dev ocl-icd-opencl-dev prometheus-cpp-dev
  protobuf-compiler protobuf-compiler-grpc zlib1g-dev
  # tests and benchmarks
  libbenchmark-dev libgmock-dev libgtest-dev
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
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
