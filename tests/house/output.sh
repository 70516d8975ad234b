#!/usr/bin/env bash
# What an example prints, beside what its source says that it prints. Called by ctest: output.sh PROGRAM SOURCE
#
#   // Expected output:
#   // loss 0.5          as it is
#   // time … ms         … is anything
#   // …                 any lines
#
# "Expected output, figures within 2 %:" lets numbers differ by so much. The comment ends with the first line that is none;
# another one, "Expected output of …:", is for readers alone.
set -euo pipefail
program=$1 source=$2

"$program" >output.txt 2>errors.txt || { cat output.txt errors.txt; echo "$program failed"; exit 1; }
awk -v source="${source##*/}" '
  function trimmed(s) { sub(/[ \r]+$/, "", s); return s }
  function near(a, b) { return (a > b ? a - b : b - a) <= within * (a < 0 ? -a : a) }
  # One line, e of which the source says, o printed.
  function same(e, o,   i, n, parts, before, x, y) {
    if (e == o) return 1
    n = split(e, parts, "…")
    for (i = 1; n > 1 && i <= n; ++i) {
      if (i == n && parts[n] != "") return substr(o, length(o) - length(parts[n]) + 1) == parts[n] && length(o) >= length(parts[n])
      x = index(o, parts[i])
      if (parts[i] != "" && (!x || i == 1 && x != 1)) return 0
      if (parts[i] != "") o = substr(o, x + length(parts[i]))
    }
    if (n > 1) return 1
    while (within && match(e, /[0-9]+[.]?[0-9]*(e[-+]?[0-9]+)?/)) {
      x = substr(e, RSTART, RLENGTH) + 0; before = substr(e, 1, RSTART - 1); e = substr(e, RSTART + RLENGTH)
      if (!match(o, /[0-9]+[.]?[0-9]*(e[-+]?[0-9]+)?/) || substr(o, 1, RSTART - 1) != before) return 0
      y = substr(o, RSTART, RLENGTH) + 0; o = substr(o, RSTART + RLENGTH)
      if (!near(x, y)) return 0
    }
    return e == o
  }
  FNR == NR && /^\/\/ Expected output(, figures within [0-9.]+ %)?:$/ { saying = 1; if (match($0, /[0-9.]+/)) within = substr($0, RSTART, RLENGTH) / 100; next }
  FNR == NR && !/^\/\// { saying = 0 }
  FNR == NR { if (saying) { line = $0; sub(/^\/\/ ?/, "", line); said[++m] = trimmed(line) } next }
  { printed[++n] = trimmed($0) }
  END {
    while (n && printed[n] == "") --n
    if (!m) { print source " says nothing of its output"; exit 1 }
    for (i = j = 1; i <= m; ++i) {
      if (said[i] == "…") { any = 1; continue }
      while (any && j <= n && !same(said[i], printed[j])) ++j
      any = 0
      if (j > n || !same(said[i], printed[j])) { print source " says: " said[i] "\nprinted:  " (j > n ? "nothing more" : printed[j]); exit 1 }
      ++j
    }
    if (!any && j <= n) { print source " says nothing of: " printed[j]; exit 1 }
    print m " lines as " source " says"
  }' "$source" output.txt
