#!/usr/bin/env bash
# Measures the claims that papers and texts make about gated attention, one program for several claims, and writes the
# page docs/CLAIMS.md: claim, source, figures, verdict. Works from any folder. examples/claims/README.md says how to add
# a claim.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: examples/claims.sh [--only C2[,C6…]] [--out FOLDER] [--programs FOLDER] [--again] [--smoke] [--no-install]
  --only CLAIMS      measure these only; the page shows the others as they last were
  --out FOLDER       where results, pictures and logs go (default build/claims)
  --programs FOLDER  take built programs from there instead of building a Release in build/release
  --again            measure a second time, with other random draws, and say which figures differ by more
                     than their spread
  --smoke            tiny sizes and no verdicts, to test programs and page
  --no-install       use the machine as it is, without apt-get install
The seconds of all claims add up to 86 minutes; trainings that they share run once. The page is
FOLDER/CLAIMS.md, and docs/CLAIMS.md once every claim has a result.
TEXT
}
say() { printf 'claims: %s\n' "$*"; }
bad() { printf 'claims: %s (--help lists the options)\n' "$*" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/examples/support/build_programs.sh"
out=$root/build/claims again=0
while (($#)); do
  read_option "$@"
  if ((!taken)); then
    [[ $1 == --again ]] || bad "unknown option $1"
    again=1 taken=1
  fi
  shift "$taken"
done
command -v python3 >/dev/null || bad 'python3 is missing'
page() { python3 "$root/examples/claims/page.py" "$@"; }
list=$(page --list ${only:+--only "$only"}) || exit 2 # lines: part, program, seconds, text or -
mkdir -p "$out"

if [[ ! $programs ]]; then
  programs=$root/build/release/examples
  build_programs claims
fi
data=$root/build/data
if ((!smoke)) && cut -f4 <<<"$list" | grep -qx text; then bash "$root/examples/fetch_data.sh" "$data"; fi

failed=0
measure() { # folder of results, seed
  mkdir -p "$1"
  rm -f "$1"/*.runs.json # trainings that claims of one run share
  while IFS=$'\t' read -r part program seconds text; do
    arguments=(--only "$part" --out "$1" --seed "$2" --seconds "$seconds")
    if ((smoke)); then arguments+=(--smoke); elif [[ $text == text ]]; then arguments+=(--text "$data/jargon.txt"); fi
    say "$program --only $part --seed $2 --seconds $seconds"
    rm -f "$1/$part.json" # a claim that fails has no result
    if "$programs/$program" "${arguments[@]}" >"$1/$part.txt" 2>"$1/$part.log" </dev/null; then
      sed -n '$s/^/  /p' "$1/$part.txt"
    else
      failed=1
      tail -n 5 "$1/$part.log" >&2
      say "failed: $program --only $part"
    fi
  done <<<"$list"
}
measure "$out" 1
if ((again)); then measure "$out/again" 2; fi

options=(--out "$out")
if ((again)); then options+=(--again "$out/again"); fi
if ((!smoke)); then options+=(--docs "$root/docs"); fi
page "${options[@]}" | sed 's/^/claims: /'
exit "$failed"
