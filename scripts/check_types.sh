#!/bin/bash
# Refuses two types of the same name in a folder that is one namespace (engine, server, client): the
# linker takes one body of a template over such a type for both, and no tool says so.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
for folder in engine server client; do
  names=$(grep -rhoE '^(struct|class|enum class) [A-Z][A-Za-z0-9]+( final)? *[:{]' "$folder" \
    --include='*.h' | sed -E 's/^(struct|class|enum class) //; s/[ :{].*//' | sort | uniq -d)
  for name in $names; do
    echo "more than one type in $folder/ is called $name:"
    grep -rnE "^(struct|class|enum class) $name( final)? *[:{]" "$folder" --include='*.h'
    status=1
  done
done
exit "$status"
