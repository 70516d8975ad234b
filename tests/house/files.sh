#!/usr/bin/env bash
# What lies where, how long files are, and what must not stand in them. Called by ctest: files.sh SOURCE
set -euo pipefail
cd "$1"

failed=0
bad() { printf '%s\n' "$*"; failed=1; }

# All files that belong to the project: what git would commit, or without git all but build folders.
if git ls-files -co --exclude-standard >/dev/null 2>&1; then
  mapfile -t files < <(git ls-files -co --exclude-standard)
else
  mapfile -t files < <(find . \( -name .git -o -path './build*' \) -prune -o -type f -print | sed 's|^\./||')
fi
((${#files[@]} > 100)) || bad "found only ${#files[@]} files: this test is broken"

# The top level: these, and names that begin with a dot.
top=(core ops autograd parallel layers cuda tests examples docs CMakeLists.txt README.md CHANGELOG.md CMakePresets.json LICENSE)
for name in "${top[@]}"; do
  [[ -e $name ]] || bad "missing at the top level: $name"
done
for name in $(printf '%s\n' "${files[@]%%/*}" | sort -u); do
  [[ $name == .* || " ${top[*]} " == *" $name "* ]] || bad "not expected at the top level: $name"
done

for room in core ops autograd parallel layers cuda tests examples; do
  [[ -s $room/README.md ]] || bad "missing: $room/README.md"
done

lines=0
for file in "${files[@]}"; do
  [[ -f $file ]] || continue # deleted, but not yet committed
  case $file in
    *.h | *.cpp | *.cu | *.cuh)
      length=$(wc -l <"$file")
      lines=$((lines + length))
      ((length <= 400)) || bad "$file has $length lines; 400 are the limit"
      ;;
    *.sh | .ci/run)
      bash -n "$file" || bad "$file: bash finds a syntax error"
      [[ -x $file ]] || bad "$file is not executable"
      ;;
  esac
done

# The README: short, without holes, and its program is one that is compiled and run.
(($(wc -l <README.md) <= 200)) || bad 'README.md has more than 200 lines'
if grep -nE '@[A-Z]+@' README.md; then bad 'README.md has unfilled places'; fi
program=$(sed -n '/^```cpp$/,/^```$/p' README.md | sed '1d;$d')
[[ $program == "$(cat examples/00_readme.cpp)" ]] || bad 'the program in README.md is not examples/00_readme.cpp'

# Paths of one person's machine and notes that are not part of the project.
pattern='(^|[^[:alnum:]_.$}])/(work|root|home)/|(^|[^[:alnum:]_])(DESIGN|USERS|SPEC|CUDA)[.]md'
if grep -nIE "$pattern" -- "${files[@]}" 2>/dev/null; then
  bad 'the lines above name a path of one machine or a note that is not here'
fi

((failed)) || echo "${#files[@]} files, $lines lines of C++"
exit "$failed"
