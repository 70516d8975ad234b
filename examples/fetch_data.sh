#!/usr/bin/env bash
# fetch_data.sh [FOLDER [FILE...]]: fetches the data of the examples into build/data (or FOLDER), from Debian packages: the Jargon
# File, WordNet's nouns, Fashion-MNIST and 16S ribosomal genes, 40 MB in all, or the FILEs named alone, of which digits.csv
# is one more. Installs nothing and needs no root; what is there already stays.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=${1:-$root/build/data}
wanted=" ${*:2} "
if (($# < 2)); then wanted=' jargon.txt data.noun rRNA16S.gold.fasta fashion-mnist '; fi
# file | package | where it lies under /usr
files=(
  'jargon.txt|jargon-text|share/doc/jargon-text/jargon.txt.gz'
  'data.noun|wordnet-base|share/wordnet/data.noun'
  'rRNA16S.gold.fasta|microbiomeutil-data|share/microbiomeutil-data/RESOURCES/rRNA16S.gold.fasta'
  'fashion-mnist|dataset-fashion-mnist|share/datasets/fashion-mnist'
  'digits.csv|python3-sklearn|lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz'
)
for name in $wanted; do
  [[ " ${files[*]%%|*} " == *" $name "* ]] || { echo "error: there is no $name; known: ${files[*]%%|*}" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$data" "$work/lists/partial" "$work/cache/archives/partial"
data=$(cd "$data" && pwd)

options=(-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20)
# Root's apt drops its rights for the download and then warns that it cannot write here.
if ((EUID == 0)); then options+=(-o APT::Sandbox::User=root); fi
# Second try: with package lists of our own, for a machine whose lists are old or were cleaned away.
lists=(-o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache")
unpacked() { # package: its files lie under $work/tree then
  cd "$work"
  timeout 300 apt-get "${options[@]}" download "$1" >log 2>&1 ||
    { timeout 300 apt-get "${options[@]}" "${lists[@]}" update && timeout 300 apt-get "${options[@]}" "${lists[@]}" download "$1"; } >>log 2>&1 ||
    { echo "error: the package $1 cannot be downloaded: $(tail -n 1 log)" >&2; exit 1; }
  dpkg-deb -x "$1"_*.deb tree
}

for file in "${files[@]}"; do
  IFS='|' read -r name package path <<<"$file"
  if [[ $wanted != *" $name "* || -d $data/$name || -s $data/$name ]]; then continue; fi
  unpacked "$package"
  from=$work/tree/usr/$path
  if [[ $path == *.gz ]]; then
    gzip -d "$from"
    from=${from%.gz}
  fi
  # Under another name first, so that a broken download leaves no half of it.
  rm -rf "$data/$name.part"
  mv "$from" "$data/$name.part" && mv "$data/$name.part" "$data/$name" && echo "wrote $data/$name"
done
