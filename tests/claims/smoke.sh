#!/usr/bin/env bash
# Every claim that has a program, with tiny sizes, and the page. Called by ctest: smoke.sh SOURCE FOLDER_OF_PROGRAMS OUT
set -euo pipefail
source=$1 programs=$2 out=$3
bad() { printf '%s\n' "$*" >&2; exit 1; }
claims() { bash "$source/examples/claims.sh" "$@"; }

rm -rf "$out"
before=$(cd "$source/docs" && ls -l)
claims --smoke --programs "$programs" --out "$out" --again
parts=$(python3 "$source/examples/claims/page.py" --list | cut -f1)
(($(wc -w <<<"$parts") >= 20)) || bad "found only $(wc -w <<<"$parts") parts: this test is broken"
for part in $parts; do
  for folder in "$out" "$out/again"; do
    grep -q '"verdict": "smoke"' "$folder/$part.json" || bad "$folder/$part.json has no verdict \"smoke\""
  done
  grep -q "^\`claim_[a-z_]* --only $part " "$out/CLAIMS.md" || bad "the page has no paragraph of $part"
done
rows=$(grep -c '^| \[C[0-9]*\](#c[0-9]*) |' "$out/CLAIMS.md")
sections=$(grep -c '^## C[0-9]*$' "$out/CLAIMS.md")
claims=$(grep -c '"id":' "$source/examples/claims/claims.json")
((claims > 40 && rows == claims && sections == claims)) || bad "$rows rows and $sections sections of $claims claims"
bash "$source/tests/house/columns.sh" "$out/CLAIMS.md"
PYTHONPATH=$source/tests/house python3 -B -c 'import pathlib, sys, shown
for picture in map(pathlib.Path, sys.argv[1:]): shown.form(picture.stem, picture.read_text(encoding="utf-8"))
sys.exit("\n".join(shown.failures) or 0)' "$out"/*.svg
[[ $(cd "$source/docs" && ls -l) == "$before" ]] || bad 'a smoke run wrote into docs'

# --only measures what it names, and nothing else.
rm "$out"/*.json
claims --smoke --programs "$programs" --out "$out" --only C38,C8 >/dev/null
wrote=$(cd "$out" && ls ./*.json | tr '\n' ' ')
[[ $wrote == './C38.json ./C8.json ' ]] || bad "--only C38,C8 wrote $wrote"
# What is exact takes no time, and has the same verdict everywhere.
exact='C1:shown C8:shown C15:shown C18:contradicted C20:shown C21:shown C24:shown C38:contradicted C39:contradicted
  C40:contradicted C41:shown C42:contradicted'
names=$(sed -E 's/:[a-z]+//g' <<<"$exact" | xargs | tr ' ' ',')
claims --only "$names" --programs "$programs" --out "$out" >"$out/exact.txt"
for pair in $exact; do
  file=$out/${pair%:*}.json
  grep -q "\"verdict\": \"${pair#*:}\"" "$file" || bad "${pair%:*} is not ${pair#*:}: $(grep '"why"' "$file")"
done
# Errors end the run, and a claim that fails has no result.
if claims --only C99 --programs "$programs" --out "$out" 2>/dev/null; then bad 'C99 is no claim'; fi
if claims --sideways 2>/dev/null; then bad '--sideways is no option'; fi
if claims --out 2>/dev/null; then bad '--out needs a value'; fi
mkdir "$out/none"
if claims --smoke --programs "$out/none" --out "$out" --only C8 >/dev/null 2>&1; then bad 'there are no programs'; fi
[[ ! -e $out/C8.json ]] || bad 'a claim that failed kept its old result'
