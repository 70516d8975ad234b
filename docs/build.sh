#!/usr/bin/env bash
# The documentation site: docs/build.sh [--no-install] [FOLDER] writes FOLDER/html (build/site/html), to be opened at
# index.html, from a disk too. docs/README.md says how. Status 1 if a public symbol has no comment, a text stands at the
# wrong symbol, a link leads nowhere or a page has no title; 77 with --no-install where a tool is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install=1
if [[ ${1-} == --no-install ]]; then install=0 && shift; fi
out=${1:-build/site}
missing=$(bash tests/install_deps.sh --docs-only --check || true)
if [[ $missing != *'nothing missing'* ]]; then
  ((install)) || { echo "docs: skipped, ${missing#install_deps: }" && exit 77; }
  bash tests/install_deps.sh --docs-only
fi

rm -rf "$out/html" "$out/xml" "$out/pages" "$out/headers"
mkdir -p "$out/headers"
headers=$(cd "$out/headers" && pwd)
rooms=(core ops autograd parallel layers)
find "${rooms[@]}" -name '*.h' -exec python3 docs/site/filter.py "$headers" {} +
{ cat docs/site/Doxyfile && echo "OUTPUT_DIRECTORY = $out
INPUT = ${rooms[*]/#/$headers/}
STRIP_FROM_PATH = $headers"; } | doxygen - 2>"$out/warnings.txt"
if [[ -s $out/warnings.txt ]]; then
  sed "s#^$headers/##" "$out/warnings.txt" >&2
  echo "docs: $(wc -l <"$out/warnings.txt") warnings" >&2
  exit 1
fi
python3 docs/site/check.py "$out/xml" || exit 1
python3 docs/site/pages.py "$out/xml" "$out" || exit 1
if ! mkdocs build --quiet --strict --config-file "$out/mkdocs.yml" 2>"$out/errors.txt"; then
  if ((!install)) && grep -q 'theme name' "$out/errors.txt"; then echo 'docs: skipped, no theme Material' && exit 77; fi
  cat "$out/errors.txt" >&2
  exit 1
fi
python3 docs/site/check_pages.py "$out" || exit 1
echo "docs: $out/html/index.html"
