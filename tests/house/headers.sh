#!/usr/bin/env bash
# Every public header compiles alone. x.cpp begins with its own header, so building the library has proved that for most,
# but for names of the standard headers that it precompiles, which are looked up here; the others are compiled, but for
# those with which another one begins. All together are clean under -Wshadow and -Wconversion. Called by ctest:
# headers.sh SOURCE COMPILER INCLUDE
set -euo pipefail
compiler=$2 include=$3
cd "$1"
headers=($(find core ops autograd parallel layers -name '*.h' | sort)) # no name has a space

failed=0 proved=0 compiled=0
rest=()
for header in "${headers[@]}"; do
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
# Pairs: one of the rest, and the header with which it begins. It does not compile unless that one does.
begins=$(awk '/^#/ && ++line[FILENAME] == 2 && sub("^#include <sluice/", "") && sub(">.*", "") { print FILENAME, $0 }' "${rest[@]}")
tsort <<<"$begins" >/dev/null || { echo 'these headers begin with each other'; failed=1; }
for header in "${rest[@]}"; do
  if grep -q " $header$" <<<"$begins"; then
    proved=$((proved + 1))
    continue
  fi
  compiled=$((compiled + 1))
  echo "#include <sluice/$header>" |
    "$compiler" -std=c++20 -Wall -Wextra -Wno-psabi -I"$include" -fsyntax-only -x c++ - ||
    { echo "$header does not compile alone"; failed=1; }
done

# Names in a file, and the standard header that gives them: it must include that one, or a header of ours that does.
awk '
  BEGIN {
    gives["vector"] = "std::vector"; gives["string"] = "std::(string|to_string)[^_a-z]"; gives["span"] = "std::span"
    gives["optional"] = "std::(optional|nullopt)"; gives["functional"] = "std::function[^_a-z]"; gives["array"] = "std::array"
    gives["map"] = "std::map"; gives["set"] = "std::set[^_a-z]"; gives["limits"] = "std::numeric_limits"
    gives["memory"] = "std::(shared_ptr|unique_ptr|make_shared|make_unique)"; gives["tuple"] = "std::(tuple|tie|make_tuple)[^_a-z]"
    gives["algorithm"] = "std::(clamp|sort|copy_n|copy|fill_n|fill|equal|find|find_if|any_of|all_of|count_if|transform)[^_a-z]"
    gives["cmath"] = "std::(sqrt|exp|log|log1p|pow|floor|ceil|isnan|isinf|isfinite|fabs|tanh|erf|ldexp|lround)[^_a-z]"
  }
  { sub("//.*", "") }
  match($0, /^#include <[^>]*>/) { includes[FILENAME] = includes[FILENAME] " " substr($0, 11, RLENGTH - 11) }
  /std::/ { for (g in gives) if ($0 ~ gives[g]) named[FILENAME, g] = 1 }
  function reach(file, list, n, i) {
    n = split(includes[file], list, " ")
    for (i = 1; i <= n; ++i)
      if (!(list[i] in seen)) { seen[list[i]] = 1; if (sub("^sluice/", "", list[i])) reach(list[i]) }
  }
  END {
    for (i = 1; i < ARGC; ++i) {
      delete seen
      reach(ARGV[i])
      for (g in gives) if ((ARGV[i], g) in named && !(g in seen)) {
        print ARGV[i] ": names of <" g ">, which neither it nor a header of ours that it includes asks for"; failed = 1
      }
    }
    exit failed
  }' $(find core ops autograd parallel layers -name '*.h' -o -name '*.cpp') || failed=1

# All of them at once under the warnings a user may have on, templates instantiated; none may cite what users do not have.
{
  for header in "${headers[@]}"; do echo "#include <sluice/$header>"; done
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
if grep -nE 'SPEC|DESIGN' "${headers[@]}"; then
  echo "public headers cite papers only"
  failed=1
fi

((failed)) || echo "$proved headers proved by what begins with them, $compiled compiled here"
exit "$failed"
