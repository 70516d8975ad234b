#!/usr/bin/env bash
# The prose of pages has lines of at most 120 characters: tables, pictures and blocks of code are as wide as they are.
# columns.sh PAGE…, status 1 if a line is longer.
set -euo pipefail

failed=0
for page in "$@"; do
  LC_ALL=C tr -d '\200-\277' <"$page" | # one byte is left of each character
    awk -v page="$page" '
      /^ *```/ { code = !code }
      !code && !/^ *[|!]/ && length($0) > 120 { print page ":" NR ": " length($0) " columns"; long = 1 }
      END { exit long }' || failed=1
done
exit "$failed"
