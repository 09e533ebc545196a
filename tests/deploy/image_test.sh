#!/bin/bash
# Builds the image as the Dockerfile says, runs it as user 10001 with a read-only root, without capabilities,
# without a writable mount and within limits of a control group, drives it from outside of the container, and
# stops it with SIGTERM:
#   image_test.sh BUILD_DIRECTORY
# Needs no container engine's daemon and no registry: podman builds in a chroot, on a base image of
# debootstrap's, and keeps everything in a directory that is removed at the end. Ends with status 77 where it
# cannot run: it must be root and reach Debian's mirror, and `scripts/setup.sh --deploy` installs what it calls.
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/../.."

skip() {
  echo "SKIPPED: $1"
  exit 77
}
((EUID == 0)) || skip "building an image in a chroot needs root"
for tool in podman debootstrap runc nsenter curl; do
  command -v "$tool" >/dev/null || skip "$tool is not installed (scripts/setup.sh --deploy)"
done
readonly mirror=http://deb.debian.org/debian
curl --fail --silent --head --retry 2 --max-time 20 --output /dev/null "$mirror/dists/bookworm/Release" ||
  skip "$mirror does not answer, and the image is made of its packages"

readonly image=localhost/attnd:test name=attnd-test
work=$(mktemp -d)
server=
finish() {
  if [[ -n $server ]]; then
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  podman rm --force --all --time 0 >/dev/null 2>&1 || true
  podman rmi --force --all >/dev/null 2>&1 || true
  rm -rf --one-file-system "$work"
}

say() { printf '%4d s  %s\n' "$SECONDS" "$1"; }
fail() {
  echo "image_test: $1" >&2
  podman logs --tail 20 "$name" >&2 2>/dev/null || true
  exit 1
}

# Plain files for storage, events and logs, and limits that a container is allowed to set inside of another.
cat >"$work/storage.conf" <<END
[storage]
driver = "vfs"
graphroot = "$work/store"
runroot = "$work/run"
END
cat >"$work/containers.conf" <<END
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
events_logger = "file"
cgroup_manager = "cgroupfs"
lock_type = "file"
tmp_dir = "$work/libpod"
END
export TMPDIR=$work CONTAINERS_STORAGE_CONF=$work/storage.conf CONTAINERS_CONF=$work/containers.conf
# Not before: without the export, `finish` would remove the containers and images of this machine.
trap finish EXIT

debootstrap --variant=minbase bookworm "$work/rootfs" "$mirror" >"$work/log" 2>&1 || {
  tail -n 20 "$work/log" >&2
  fail "debootstrap failed"
}
tar -C "$work/rootfs" --exclude=./var/cache/apt/archives/*.deb -c . |
  podman import --quiet --change 'CMD ["bash"]' - localhost/debian:bookworm-slim >/dev/null
rm -rf --one-file-system "$work/rootfs"
say "base image made"

podman build --isolation chroot --pull=never --layers=false --format docker --tag "$image" . \
  >"$work/log" 2>&1 || {
  tail -n 40 "$work/log" >&2
  fail "the image does not build"
}
say "image built, $(podman image inspect --format '{{.Size}}' "$image" | numfmt --to=iec-i --suffix=B)"

# What the image says of itself.
expect() {
  local found
  found=$(podman image inspect --format "$1" "$image")
  [[ $found == "$2" ]] || fail "the image's $1 is '$found'; it must be '$2'"
}
expect '{{.Config.User}}' 10001:10001
expect '{{.Config.StopSignal}}' SIGTERM
expect '{{json .Config.Entrypoint}}' '["attnd"]'
expect '{{json .HealthCheck.Test}}' '["CMD","attnctl","health"]'

podman run --detach --name "$name" --network none --health-interval disable \
  --read-only --read-only-tmpfs=false --cap-drop ALL --security-opt no-new-privileges --cpus 1 --memory 1g \
  "$image" --drain_delay=2s >/dev/null 2>"$work/log" || {
  cat "$work/log" >&2
  fail "the container does not start"
}
pid=$(podman inspect --format '{{.State.Pid}}' "$name")
for ((tries = 0; tries < 100; ++tries)); do
  podman healthcheck run "$name" >/dev/null 2>&1 && break
  sleep 0.2
done
podman healthcheck run "$name" >/dev/null || fail "the health check does not succeed"
say "healthy"

# What the kernel says of the process.
status() { awk -v key="$1:" '$1 == key {$1 = ""; print substr($0, 2)}' "/proc/$pid/status"; }
[[ $(status Uid) == '10001 10001 10001 10001' ]] || fail "the server runs as $(status Uid)"
for set in CapInh CapPrm CapEff CapBnd CapAmb; do
  [[ $(status "$set") == 0000000000000000 ]] || fail "the server's $set is $(status "$set")"
done
[[ $(status NoNewPrivs) == 1 ]] || fail "the server may gain privileges"
for path in / /tmp /var/tmp /run; do
  ! podman exec "$name" touch "$path/file" 2>/dev/null || fail "$path is writable"
done
podman exec "$name" sh -c 'ldd /usr/local/bin/*' >"$work/libraries"
! grep 'not found' "$work/libraries" || fail "libraries are missing"
[[ $(grep -c '=>' "$work/libraries") -gt 20 ]] || fail "ldd lists no libraries"
packages=$(podman exec "$name" dpkg-query -W -f '${Package}\n')
! grep -E -e '-dev$|^(clang|cmake|cpp|g\+\+|gcc|make)(-[0-9]+)?$' <<<"$packages" || fail "the image holds what only a build needs"
say "user, capabilities, file system, libraries and $(wc -l <<<"$packages") packages are as they should be"

# What the server makes of its limits: a worker for the processor, three quarters of the memory for sessions.
inside() { nsenter --net="/proc/$pid/ns/net" "$@"; }
podman logs "$name" >"$work/log" 2>&1
grep -q '"workers":1,' "$work/log" || fail "the server does not keep to its processor"
limit=$(inside "$build/client/attnctl/attnctl" --server=127.0.0.2:50051 info --json |
  sed -n 's/.*"maxStateBytes": "\([0-9]*\)".*/\1/p')
[[ $limit == $((768 << 20)) ]] || fail "max_state_bytes is $limit in a container of 1 GiB"
say "the server keeps to its limits"

# A job from outside, over an address that only a server on all interfaces answers at. The outputs must be,
# bit for bit, those of the server that this machine has built.
"$build/server/attnd" --listen=127.0.0.1:0 --http_listen= --ready_file="$work/ready" 2>"$work/here.log" &
server=$!
for ((tries = 0; tries < 100; ++tries)); do
  [[ -s $work/ready ]] && break
  sleep 0.1
done
job() { # SERVER DIRECTORY
  local attnctl=("$build/client/attnctl/attnctl" "--server=$1") engine
  mkdir "$2"
  for engine in exact linear; do
    "${attnctl[@]}" create --id "$engine" --engine "$engine" --key-dim 100 --scale 1
    "${attnctl[@]}" append "$engine" --keys tests/data/glove_keys.npy --values tests/data/glove_values.npy
    "${attnctl[@]}" attend "$engine" --queries tests/data/glove_queries_f16.npy --out "$2/$engine.npy"
  done
}
export build
export -f job
inside bash -euc "job 127.0.0.2:50051 '$work/image'" || fail "the job fails"
job "$(sed -n 's/^grpc=//p' "$work/ready")" "$work/here" >/dev/null || fail "the job fails on this machine's server"
for engine in exact linear; do
  cmp "$work/image/$engine.npy" "$work/here/$engine.npy" || fail "the image answers with other bits"
done
[[ $(inside curl -s http://127.0.0.2:9090/readyz) == ok ]] || fail "/readyz does not answer"
inside curl -s http://127.0.0.2:9090/metrics >"$work/metrics"
grep -q '^attnd_message_seconds_count{.*} [1-9]' "$work/metrics" || fail "/metrics has counted nothing"
say "the job's answers are right"

podman stop --time 60 "$name" >"$work/log" 2>&1 &
stopping=$!
while inside "$build/client/attnctl/attnctl" --server=127.0.0.2:50051 health >"$work/health" 2>&1; do
  sleep 0.1
done
grep -q 'says NOT_SERVING' "$work/health" ||
  fail "the server did not say that it drains: $(cat "$work/health")"
wait "$stopping"
code=$(podman inspect --format '{{.State.ExitCode}}' "$name")
[[ $code == 0 ]] || fail "the server ended with status $code after SIGTERM"
podman logs "$name" >"$work/log" 2>&1
grep -q '"event":"stopped"' "$work/log" || fail "the server's log does not tell that it stopped"
say "stopped cleanly on SIGTERM"
