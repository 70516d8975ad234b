#!/usr/bin/env bash
# Each case_*.cpp holds, in `#ifdef MISTAKE … #else … #endif`, a mistake and its correct twin, and a line
# `// message: REGEX`. The twins of all cases must compile, each mistake must not, and the compiler's output
# must hold the message; `// says: REGEX` is advice that must stand anywhere in it. What is said of a formula (case_map_*)
# may be 8 lines long in a program that includes <sluice/sluice.h>, or as `// lines: N` says; the lines of source that compilers
# add are not counted, of which each version shows others. Called by ctest: compile_fail_test.sh COMPILER INCLUDE FOLDER
set -euo pipefail

compiler=$1 include=$2 work=$3
cases=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
compile=("$compiler" -std=c++20 -I"$include" -fsyntax-only)
mkdir -p "$work"
failed=0
bad() { printf 'FAILED: %s\n' "$*"; failed=1; }

# The headers are read once: <sluice/sluice.h>, precompiled. -x c++-header takes no -fsyntax-only.
suffix=gch alone=-fno-diagnostics-show-caret
if "$compiler" --version | grep -qi clang; then suffix=pch alone=-fno-caret-diagnostics; fi
echo '#include <sluice/sluice.h>' >"$work/all.h"
"$compiler" -std=c++20 -I"$include" -x c++-header "$work/all.h" -o "$work/all.h.$suffix"
compile+=(-include "$work/all.h")

for file in "$cases"/case_*.cpp; do printf '#include "%s"\n' "$file"; done >"$work/twins.cpp"
"${compile[@]}" "$work/twins.cpp" || bad 'a correct twin does not compile'

count=0
for file in "$cases"/case_*.cpp; do
  name=${file##*/}
  message=$(sed -n 's|^// message: ||p' "$file")
  [[ $message ]] || { bad "$name has no line '// message: REGEX'"; continue; }
  says=$(sed -n 's|^// says: ||p' "$file") lines=$(sed -n 's|^// lines: ||p' "$file")
  if [[ $name == case_map_* ]]; then lines=${lines:-8}; fi
  if "${compile[@]}" ${lines:+"$alone"} -DMISTAKE "$file" >"$work/output" 2>&1; then
    bad "$name: the mistake compiles"
  elif ! grep -Eq "error: .*($message)" "$work/output"; then
    bad "$name: no message like '$message' in:"
    cat "$work/output"
  else
    # clang names each file on the way to a header, of which the precompiled one is one more.
    length=$(grep -vcF "In file included from $work/all.h:" "$work/output")
    if [[ $says ]] && ! grep -Eq "$says" "$work/output"; then bad "$name: no advice like '$says' in:"; cat "$work/output"; fi
    if [[ $lines ]] && ((length > lines)); then bad "$name: $length lines instead of $lines:"; cat "$work/output"; fi
  fi
  count=$((count + 1))
done
((failed)) || echo "$count mistakes are refused with their message, $count twins compile"
exit "$failed"
