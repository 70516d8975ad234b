#!/usr/bin/env bash
# Trains the models of the source papers on real data, each beside its baseline, and writes one HTML page with the figures, the
# pictures and the commands: fetches the data, builds, runs. Works from any folder; everything it makes lies under build/.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: examples/report.sh [--out FOLDER] [--only NAME[,NAME…]] [--programs FOLDER] [--no-install] [--smoke]
  --out FOLDER       where report.html, pictures and logs go (default build/report)
  --only NAMES       run these only; the page shows the others as they last were
  --programs FOLDER  take built programs from there instead of building a Release in build/release
  --no-install       use the machine as it is, without apt-get install
  --smoke            a few tiny steps on made-up data, to test the page
TEXT
}
say() { printf 'report: %s\n' "$*"; }
bad() { printf 'report: %s (--help lists the options)\n' "$*" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/examples/support/build_programs.sh"
data=$root/build/data
# name | arguments | pictures | title
studies=(
  'gloss_classifier|--data DATA/data.noun|glosses|Text classification: WordNet glosses'
  'long_rrna|--data DATA/rRNA16S.gold.fasta|rrna|Long sequences: tapes of ribosomal genes, 8,192 bases'
  'fashion_vit|--data DATA/fashion-mnist|fashion|Pictures: ViT-GAU'
  'fashion_clip|--data DATA/fashion-mnist||Pictures and captions: CLIP-GAU'
  'gau_without_warmup|--text DATA/jargon.txt|warmup_24 warmup_48|Deep GAU without warm-up'
  'attention_sink|--text DATA/jargon.txt|sink spikes|Gated attention: sinks, activations, spikes'
  'hybrid_lm|--text DATA/jargon.txt|hybrid_bits hybrid_time|The 3 : 1 hybrid, GAU, FLASH and softmax over length'
)

out=$root/build/report
while (($#)); do
  read_option "$@"
  ((taken)) || bad "unknown option $1"
  shift "$taken"
done
for name in ${only//,/ }; do
  [[ " ${studies[*]%%|*} " == *" $name "* ]] || bad "--only: there is no $name"
done
mkdir -p "$out"

if [[ ! $programs ]]; then
  programs=$root/build/release/examples
  build_programs "${studies[@]%%|*}"
fi
if ((!smoke)); then bash "$root/examples/fetch_data.sh" "$data"; fi

# ---- run -----------------------------------------------------------------------------------------
failed=0
for study in "${studies[@]}"; do
  IFS='|' read -r name arguments _ _ <<<"$study"
  if [[ $only && ,$only, != *,$name,* ]]; then continue; fi
  command="$name ${arguments//DATA/build/data}"
  read -ra words <<<"$arguments"
  words=("${words[@]//DATA/$data}")
  if ((smoke)); then words=(--smoke) command="$name --smoke"; fi
  if [[ $study != *'||'* ]]; then words+=(--out "$out"); fi
  say "$command"
  rm -f "$out/$name.command" # its section is left out until it has figures again
  TIMEFORMAT='%R %U'
  if { time "$programs/$name" "${words[@]}" >"$out/$name.txt" 2>"$out/$name.log"; } 2>"$out/$name.time"; then
    printf '%s\n' "$command" >"$out/$name.command"
    grep '^result' "$out/$name.txt" | cut -f3-5 | tr '\t' '|' | sed 's/^/  /'
  else
    failed=1
    tail -n 5 "$out/$name.log" >&2
    say "failed: $name"
  fi
done

# ---- the page ------------------------------------------------------------------------------------
html() { sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g'; }
page=$out/report.html
{
  cat <<'HTML'
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sluice: models of gated attention on real data</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; background: #fff }
table { border-collapse: collapse; width: 100%; font-size: 14px } th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #e5e7eb }
code, pre { font: 13px/1.4 ui-monospace, monospace } pre { overflow-x: auto; background: #f3f4f6; padding: .8rem; border-radius: 6px }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0 } .yes { color: #047857 } .no { color: #b91c1c }
</style></head><body>
<h1>Models of gated attention on real data</h1>
HTML
  printf '<p>Made by <code>examples/report.sh</code> on %s: %s, %s processors. Times: seconds on the clock, and of processor time shared by two cores.</p>\n' \
    "$(date -u +%F)" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p | html)" "$cores"
  printf '<table><tr><th>example</th><th>figure</th><th>baseline</th><th>beaten</th><th>seed</th><th>time</th><th>command</th></tr>\n'
  for study in "${studies[@]}"; do
    name=${study%%|*}
    [[ -s $out/$name.command ]] || continue
    IFS=$'\t' read -r _ _ figure baseline beaten seed < <(grep '^result' "$out/$name.txt")
    read -r wall user <"$out/$name.time"
    printf '<tr><td><a href="#%s">%s</a></td><td>%s</td><td>%s</td><td class="%s">%s</td><td>%s</td><td>%.0f s, %s s</td><td><code>%s</code></td></tr>\n' "$name" "$name" \
      "$(html <<<"$figure")" "$(html <<<"$baseline")" "$beaten" "$beaten" "$seed" "$wall" "$(awk -v u="$user" 'BEGIN { printf "%.0f", u / 2 }')" "$(html <"$out/$name.command")"
  done
  printf '</table>\n'
  for study in "${studies[@]}"; do
    IFS='|' read -r name _ pictures title <<<"$study"
    [[ -s $out/$name.command ]] || continue
    # What it shows is what its first comment says.
    printf '<h2 id="%s">%s</h2>\n<p>%s</p>\n' "$name" "$(html <<<"$title")" \
      "$(sed -n '/^\/\//!q; s/^\/\/ \{0,1\}//; /^  /d; p' "$root/examples/$name.cpp" | sed '/examples\/report.sh/,$d' | tr '\n' ' ' | html)"
    for picture in $pictures; do
      # On one page each picture needs names of its own.
      if [[ -s $out/$picture.svg ]]; then sed -e '/^<?xml/d' -e "s/id=\"plot\"/id=\"plot_$picture\"/; s/url(#plot)/url(#plot_$picture)/g" "$out/$picture.svg"; fi
    done
    printf '<pre>'
    grep -v '^result' "$out/$name.txt" | html
    printf '</pre>\n'
  done
  printf '</body></html>\n'
} >"$page.part"
mv "$page.part" "$page"
say "wrote $page"
exit "$failed"
