#!/usr/bin/env bash
# clang++, for those who build with g++: all public headers under the warnings a user may have on, the kernels of each
# instruction set with nothing but plain x86-64 allowed elsewhere, and a user's formulas compiled for every instruction
# set, without a warning. Called by ctest: clang.sh SOURCE COMPILER INCLUDE
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$1 compiler=$2 include=$3
cd "$source"
shopt -s globstar

failed=0
for header in {core,ops,autograd,parallel,layers}/**/*.h; do echo "#include <sluice/$header>"; done |
  "$compiler" -std=c++20 -Wall -Wextra -Wshadow -Wconversion -Werror -I"$include" -fsyntax-only -x c++ - ||
  { echo "warnings in public headers"; failed=1; }

if [[ $("$compiler" -dumpmachine) == x86_64* ]]; then
  # What an instruction set lacks is found when code is generated, not by the syntax.
  for kernel in $(grep -rlE 'gnu::target|target\("' --include='*.cpp' core ops); do
    "$compiler" -std=c++20 -O0 -march=x86-64 -Wall -Wextra -Werror -I"$include" -S -emit-llvm -o /dev/null "$kernel" ||
      { echo "$kernel: not for clang"; failed=1; }
  done
  CXXFLAGS='-Wall -Wextra -Werror' bash "$here/versions.sh" . "$compiler" "$include" || failed=1
fi
exit "$failed"
