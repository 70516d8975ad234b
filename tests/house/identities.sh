#!/usr/bin/env bash
# identities.sh TABLE: fails if the last run of sluice_tests left an identity of the list unmeasured.
set -euo pipefail
table=$1
if [[ ! -f $table ]]; then
  echo "no $table: run sluice_tests first" >&2
  exit 1
fi
missing=$(grep 'NOT MEASURED' "$table" || true)
if [[ -n $missing ]]; then
  echo "identities that no test measured (a run with a filter leaves some out):" >&2
  echo "$missing" >&2
  exit 1
fi
echo "$(($(wc -l <"$table") - 1)) identities measured:"
cat "$table"
