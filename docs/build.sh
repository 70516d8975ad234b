#!/usr/bin/env bash
# The documentation site, from the headers and the folders' READMEs: docs/build.sh [--no-install] [FOLDER]. It is written to
# FOLDER (build/site), to be opened at index.html. Status 1 if a public symbol has no comment, a link leads nowhere,
# Doxygen finds anything else to say, or a page says of a symbol what the headers say of another (check.py); 77 with
# --no-install where Doxygen is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install=1
if [[ ${1-} == --no-install ]]; then install=0 && shift; fi
out=${1:-build/site}
if ! command -v doxygen >/dev/null || ! command -v python3 >/dev/null; then
  if ((install)); then bash tests/install_deps.sh --docs; else echo 'docs: skipped, no doxygen or no python3' && exit 77; fi
fi

rm -rf "$out/html" "$out/xml"
mkdir -p "$out"
{ cat docs/Doxyfile && echo "OUTPUT_DIRECTORY = $out
USE_MDFILE_AS_MAINPAGE = $PWD/README.md
STRIP_FROM_PATH = $PWD"; } | doxygen - 2>"$out/warnings.txt"
if [[ -s $out/warnings.txt ]]; then
  sed "s#^$PWD/##" "$out/warnings.txt" >&2
  echo "docs: $(wc -l <"$out/warnings.txt") warnings" >&2
  exit 1
fi
python3 docs/check.py "$out/xml" >&2 || exit 1
echo "docs: $out/html/index.html, $(find "$out/html" -name '*.html' | wc -l) pages, no warnings"
