#!/usr/bin/env bash
# Every public header compiles alone. x.cpp begins with its own header, so building the library has proved
# that for most; the others are compiled here. All together are clean under -Wshadow and -Wconversion. Called by ctest: headers.sh SOURCE COMPILER INCLUDE
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

# All of them at once under the warnings a user may have on, templates instantiated; none may cite what users do not have.
{
  for header in {core,ops,autograd,layers}/**/*.h; do echo "#include <sluice/$header>"; done
  cat <<'USE'
using namespace sluice;
Tensor use(const Tensor& x, const std::vector<double>& v) {
  return map([](auto a, auto b) { return select(a > 0.0, a * exp(b), max(a, b)) + pow(a, 2.0) - sigmoid(b) / 3; }, x,
             Tensor::from(v, x.shape()));
}
int64_t read(const Tensor& x) { return x.item<int64_t>() + x.to_vector<int64_t>()[0]; }
USE
} | "$compiler" -std=c++20 -Wall -Wextra -Wshadow -Wconversion -Werror -Wno-psabi -I"$include" -fsyntax-only -x c++ - ||
  { echo "warnings in public headers"; failed=1; }
if grep -nE 'SPEC|DESIGN' {core,ops,autograd,layers}/**/*.h; then
  echo "public headers cite papers only"
  failed=1
fi

((failed)) || echo "$proved headers proved by their .cpp, ${#rest[@]} compiled here"
exit "$failed"
