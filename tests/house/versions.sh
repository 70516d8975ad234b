#!/usr/bin/env bash
# A user's program built without flags, disassembled: its formula is compiled for AVX2 and AVX-512, and nothing
# else in it needs more than plain x86-64 — else it would die on a processor without them.
# Called by ctest: versions.sh SOURCE COMPILER INCLUDE; CXXFLAGS: more flags
set -euo pipefail
source=$1 compiler=$2 include=$3
object=$(mktemp)
trap 'rm -f "$object"' EXIT

# shellcheck disable=SC2086
"$compiler" -std=c++20 ${CXXFLAGS-} -O2 -DNDEBUG -march=x86-64 -I"$include" -c "$source/tests/install/consumer/main.cpp" -o "$object"
objdump -d -C --no-show-raw-insn "$object" | awk '
  /^[0-9a-f]+ <.*>:$/ { name = $0; special = name ~ /run_avx(2|512)</; wide = name ~ /run_avx512</ }
  special && name ~ /float/ && /\tv(f|mul|add)[a-z0-9]*ps .*%[yz]mm/ { vector[wide] = 1 }
  !special && /^ +[0-9a-f]+:\t+v[a-z]/ { print "needs AVX: " name "  " $0; bad = 1 }
  END {
    if (!vector[0]) { print "no formula is compiled for AVX2"; bad = 1 }
    if (!vector[1]) { print "no formula is compiled for AVX-512"; bad = 1 }
    exit bad
  }'
