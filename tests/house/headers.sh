#!/usr/bin/env bash
# Every public header compiles alone. x.cpp begins with its own header, so building the library has proved
# that for most; the others are compiled here. Called by ctest: headers.sh SOURCE COMPILER INCLUDE
set -euo pipefail
compiler=$2 include=$3
cd "$1"
shopt -s globstar

failed=0 proved=0
rest=()
for header in {core,ops,autograd,layers}/**/*.h; do
  grep -q '^#pragma once$' "$header" || { echo "$header: no #pragma once"; failed=1; }
  source=${header%.h}.cpp
  if [[ ! -f $source ]]; then
    rest+=("$header")
  elif [[ $(grep -m1 '^#include' "$source") == "#include <sluice/$header>" ]]; then
    proved=$((proved + 1))
  else
    echo "$source: its first include must be <sluice/$header>"
    failed=1
  fi
done
for header in "${rest[@]}"; do
  echo "#include <sluice/$header>" |
    "$compiler" -std=c++20 -Wall -Wextra -Wno-psabi -I"$include" -fsyntax-only -x c++ - ||
    { echo "$header does not compile alone"; failed=1; }
done

((failed)) || echo "$proved headers proved by their .cpp, ${#rest[@]} compiled here"
exit "$failed"
