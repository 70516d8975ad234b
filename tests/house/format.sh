#!/usr/bin/env bash
# Every C++ file is as clang-format 14 leaves it, by .clang-format. Called by ctest: format.sh SOURCE [--fix]
# Other versions break lines elsewhere, so without version 14 the test is skipped (77).
set -euo pipefail
cd "$1"
format=$(command -v clang-format-14 || command -v clang-format || true)
[[ $format && $("$format" --version) == *'version 14.'* ]] || { echo 'skipped: no clang-format 14'; exit 77; }

files=()
while IFS= read -r file; do
  if [[ -f $file ]]; then files+=("$file"); fi
done < <({ git ls-files -co --exclude-standard 2>/dev/null || find . -path ./build -prune -o -type f -print; } |
  grep -E '\.(h|cpp|cu|cuh|inc)$') # without git, the sources of a release
((${#files[@]} > 100)) || { echo "found only ${#files[@]} files: this test is broken"; exit 1; }
if [[ ${2-} == --fix ]]; then
  printf '%s\n' "${files[@]}" | xargs "$format" -i
else
  # clang-format fails where it has something to say, and where it cannot run.
  if ! wrong=$(printf '%s\n' "${files[@]}" | xargs "$format" --dry-run --Werror 2>&1); then
    grep -E -m 20 '^[^ ]+:[0-9]+:[0-9]+: error' <<<"$wrong" || printf '%s\n' "$wrong"
    echo 'mend it with tests/house/format.sh . --fix'
    exit 1
  fi
  echo "${#files[@]} files as .clang-format says"
fi
