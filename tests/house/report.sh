#!/usr/bin/env bash
# The page that examples/report.sh writes, from tiny runs. Called by ctest: report.sh SOURCE FOLDER_OF_PROGRAMS OUT
set -euo pipefail
source=$1 programs=$2 out="$3/with a space"
bad() { printf '%s\n' "$*" >&2; exit 1; }

rm -rf "$out"
bash "$source/examples/report.sh" --smoke --programs "$programs" --out "$out"
if bash "$source/examples/report.sh" --smoke --programs "$programs" --out "$out" --only fashion_vti 2>/dev/null; then
  bad 'there is no fashion_vti'
fi
page=$out/report.html
studies=$(sed -n '/^studies=(/,/^)/p' "$source/examples/report.sh" | grep -c '|')
((studies >= 7)) || bad "found only $studies studies: this test is broken"
rows=$(grep -c '^<tr><td>' "$page") sections=$(grep -c '^<h2 id=' "$page") pictures=$(grep -c '^<svg ' "$page")
((rows == studies && sections == studies)) || bad "$rows rows and $sections sections of $studies studies"
((pictures == 9)) || bad "$pictures pictures of 9"
grep -qE '<td class="(yes|no)">' "$page" || bad 'no verdicts'
# What refers to a name finds it, and no name stands twice.
names=$(grep -oE ' id="[^"]*"' "$page" | sort)
[[ $(uniq -d <<<"$names") == '' ]] || bad "names that stand twice: $(uniq -d <<<"$names")"
for name in $(grep -oE 'url\(#[^)]*\)|href="#[^"]*"' "$page" | sed -E 's/.*#([^)"]*).*/\1/' | sort -u); do
  grep -q " id=\"$name\"" "$page" || bad "nothing is called $name"
done
if grep -qE '(src|href)="(http|/|[^#])' "$page"; then bad 'the page needs other files'; fi
