#!/usr/bin/env bash
# What lies where, how long files are, and what must not stand in them. Called by ctest: files.sh SOURCE
set -euo pipefail
cd "$1"

failed=0
bad() { printf '%s\n' "$*"; failed=1; }

# All files that belong to the project: what git would commit, or without git all but build folders.
files=()
while IFS= read -r file; do files+=("$file"); done < <(git ls-files -co --exclude-standard 2>/dev/null ||
  find . \( -name .git -o -path './build*' \) -prune -o -type f -print | sed 's|^\./||')
((${#files[@]} > 100)) || bad "found only ${#files[@]} files: this test is broken"

# The top level: these, and names that begin with a dot.
top=(core ops autograd parallel layers cuda tests examples docs CMakeLists.txt CMakePresets.json
  README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CITATION.cff LICENSE)
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
    *.h | *.cpp | *.cu | *.cuh | *.inc)
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

# The README: short, with few numbers outside of its programs, and without holes.
(($(wc -l <README.md) <= 110)) || bad 'README.md has more than 110 lines'
(($(wc -w <README.md) <= 900)) || bad 'README.md has more than 900 words'
numbers=$(sed -e '/^```/,/^```/d' -e 's/\](\([^)]*\))/]/g' README.md | grep -oE '[0-9][0-9,.]*' | wc -l)
((numbers > 5)) || bad "found only $numbers numbers in README.md: this test is broken"
((numbers <= 40)) || bad "README.md has $numbers numbers; 40 are the limit, the others belong into the rooms"
if grep -nE '@[A-Z]+@' README.md; then bad 'README.md has unfilled places'; fi

# The pages that it gives to a weekend's reader.
pages=0
while IFS= read -r page; do
  pages=$((pages + 1))
  (($(wc -l <"$page") <= 260)) || bad "$page, for a weekend's reader, has more than 260 lines"
done < <(sed -n '/^## Read it in a weekend/,/^## Status/p' README.md | grep -oE '\]\([^)]*\)' | tr -d '])(')
((pages > 5)) || bad "found only $pages pages for a weekend's reader in README.md: this test is broken"

# Every link of a page to a file of the project leads to one.
links=0
while IFS= read -r line; do
  page=${line%%:*} link=${line#*:}
  link=${link#']('} link=${link%')'} link=${link%%#*}
  links=$((links + 1))
  [[ ! $link || $link == *://* || -e $(dirname "$page")/$link ]] || bad "$page: the link to $link leads nowhere"
done < <(printf '%s\n' "${files[@]}" | grep '[.]md$' | xargs grep -soHE '\]\([A-Za-z.#][^() ]*\)')
((links > 100)) || bad "found only $links links: this test is broken"

# Prose keeps to the columns of code.
printf '%s\n' "${files[@]}" | grep '[.]md$' | xargs bash tests/house/columns.sh || failed=1

# A program in a README is compiled, and what it prints is compared; an example says what it prints (output.sh).
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
snippets=$(bash tests/snippets/extract.sh . "$work/snippets")
(($(wc -w <<<"$snippets") > 10)) || bad "found only ${snippets//$'\n'/ } in READMEs: this test is broken"
if printf '%s\n' "${files[@]}" | grep '[.]md$' | xargs grep -nE '^[[:space:]]*(```|~~~)[[:space:]]*(c\+\+|C\+\+|cc|cxx|Cpp|CPP|cpp.+)$|^[[:space:]]+```cpp'; then
  bad 'a program in a page begins with ```cpp, at the first column, so that it is compiled'
fi
for name in $snippets; do
  [[ $name == docs_guide_*.cpp ]] && continue
  grep -qFx "#include \"$name\"" tests/snippets/snippets_test.cpp || bad "tests/snippets/snippets_test.cpp leaves out $name"
done
# A chapter of the guide is short, and its tests run a program of it.
chapters=0
for page in docs/guide/[0-9][0-9]-*.md; do
  chapters=$((chapters + 1)) name=${page##*/}
  length=$(wc -l <"$page")
  ((length <= 110)) || bad "$page has $length lines; 110 are the limit"
  grep -q '^TEST_CASE' "$work/snippets/docs_guide_${name%.md}.cpp" || bad "$page has no program with its output"
done
((chapters >= 10)) || bad "found only $chapters chapters in docs/guide: this test is broken"
for file in examples/[0-9][0-9]_*.cpp; do
  grep -q '^// Expected output' "$file" || bad "$file does not end with its expected output"
done

# Catch2 2 and 3 have different headers, and names for the same: tests know those of support/catch.h.
if printf '%s\n' "${files[@]}" | grep -E '^tests/.*[.](h|cpp)$' | xargs grep -nE '<catch2/|Catch::[A-Za-z]' |
  grep -vE '^tests/(support/catch[.]h|main[.]cpp):|Catch::(Detail::stringify|getResultCapture)'; then
  bad 'the lines above are of one Catch2; tests/support/catch.h is for both'
fi

# Paths of one person's machine and notes that are not part of the project.
pattern='(^|[^[:alnum:]_.$}])/(work|root|home)/|(^|[^[:alnum:]_])(DESIGN|USERS|SPEC|CUDA)[.]md'
if grep -nIE "$pattern" -- "${files[@]}" 2>/dev/null; then
  bad 'the lines above name a path of one machine or a note that is not here'
fi

((failed)) || echo "${#files[@]} files, $lines lines of C++"
exit "$failed"
