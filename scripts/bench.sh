#!/bin/bash
# Builds and runs the benchmarks and ends with one line for each bar:
#   bar NAME VALUE TARGET pass|fail
# bench.sh [all|engine|kde|service|store]. Fails when a bar fails.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-all} in
  all) parts=(engine kde service store) ;;
  engine | kde | service | store) parts=("$1") ;;
  *)
    echo "bench: BARS is '$1'; it must be engine, kde, service, store or all" >&2
    exit 2
    ;;
esac

cmake --preset release >/dev/null
cmake --build --preset release --target attnd attnd_benches
for part in "${parts[@]}"; do
  [[ $part != kde ]] || ATTND_WORD_VECTORS=${ATTND_WORD_VECTORS:-$(scripts/fetch_word_vectors.sh)}
done
export ATTND_WORD_VECTORS=${ATTND_WORD_VECTORS:-}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for part in "${parts[@]}"; do
  status=0
  "build/release/tests/bench/attnd_${part}_bench" | tee -a "$log" || status=$?
  # 3: a bar has failed; the others are to be seen all the same.
  if ((status != 0 && status != 3)); then
    echo "bench: attnd_${part}_bench ended with status $status" >&2
    exit 1
  fi
done

echo "== bars"
grep '^bar ' "$log"
! grep -q '^bar .* fail$' "$log"
