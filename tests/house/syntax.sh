#!/usr/bin/env bash
# Every source of a configured build — library, tests, examples — read by another compiler, without a warning:
#   syntax.sh library|programs|all BUILD COMPILER [FLAG ...]
# All standard headers are visible everywhere. A call that argument-dependent look-up can send to std is found here, and not
# by the next standard library, whose headers include others. The project's headers are read once for all sources:
# programs and layers see all of them, the rooms below those of core. Builds and tests/house/headers.sh see what a source
# forgets.
set -euo pipefail
part=$1 build=$2 compiler=$3
shift 3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The benchmarks build one source twice, with definitions that exclude each other.
mapfile -t commands < <(grep -v tests/bench/ "$build/compile_commands.json")
mapfile -t files < <(printf '%s\n' "${commands[@]}" | sed -nE 's/^ *"file": "(.*[.]cpp)".*/\1/p' | sort -u)
mapfile -t flags < <(printf '%s\n' "${commands[@]}" | grep -oE -- '(-I|-isystem )[^ "]+|-D[A-Z_]+(=[^ ]+)?' |
  sort -u | sed 's/\\\\\\"/"/g; s/^-isystem /-isystem/')
((${#files[@]} > 200)) || { echo "found only ${#files[@]} sources: this test is broken"; exit 1; }

{
  for header in algorithm any array atomic barrier bit charconv chrono compare complex concepts condition_variable \
    coroutine deque exception execution expected filesystem format forward_list fstream functional future generator \
    initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex \
    new numbers numeric optional ostream print queue random ranges ratio regex scoped_allocator semaphore set shared_mutex \
    source_location span spanstream sstream stack stacktrace stdexcept stop_token streambuf string string_view \
    syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant \
    vector version c{assert,ctype,errno,fenv,float,inttypes,limits,locale,math,setjmp,signal,stdarg,stddef,stdint} \
    c{stdio,stdlib,string,time,uchar,wchar,wctype}; do
    printf '#if __has_include(<%s>)\n#include <%s>\n#endif\n' "$header" "$header"
  done
} >"$work/standard.h"
{
  cat "$work/standard.h"
  printf '#include <sluice/%s.h>\n' core/node core/kernel/parallel ops/shape/create ops/elementwise/elementwise \
    ops/rows/reduce ops/shape/view
} >"$work/library.h"
{ cat "$work/standard.h" && printf '#include <%s>\n' support/precompiled.h sluice/sluice.h; } >"$work/programs.h"
compile=("$compiler" -std=c++20 -Wall -Wextra -Werror "${flags[@]}" "$@")
suffix=gch
if "$compiler" --version | grep -qi clang; then suffix=pch compile+=(-fpch-instantiate-templates); fi

read_all() { # header file...: reads the files after the header, which is precompiled
  local header=$1
  shift
  "${compile[@]}" -x c++-header "$work/$header" -o "$work/$header.$suffix"
  printf '%s\0' "$@" | xargs -0 -n 8 -P "${SYNTAX_JOBS:-1}" "${compile[@]}" -include "$work/$header" -fsyntax-only
}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
library=() programs=()  # tests/main.cpp asks more of Catch2 than the others
for file in "${files[@]}"; do
  case ${file#"$here/"} in
    tests/main.cpp) library+=("$file") ;;
    tests/* | examples/* | layers/* | */tests/snippets/*) programs+=("$file") ;;
    *) library+=("$file") ;;
  esac
done
failed=0 count=0
if [[ $part != programs ]]; then
  read_all library.h "${library[@]}" || failed=1
  count=${#library[@]}
fi
if [[ $part != library ]]; then
  read_all programs.h "${programs[@]}" || failed=1
  count=$((count + ${#programs[@]}))
fi
((failed)) || echo "$count sources: no warning of $("$compiler" --version | head -n 1)"
exit "$failed"
