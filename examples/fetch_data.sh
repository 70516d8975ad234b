#!/usr/bin/env bash
# Fetches the data of the examples into build/data (or the folder named), from Debian packages: the Jargon File, WordNet's nouns,
# Fashion-MNIST and 16S ribosomal genes, 40 MB in all. Installs nothing and needs no root; what is there already stays.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=${1:-$root/build/data}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$data" "$work/lists/partial" "$work/cache/archives/partial"

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
# Each goes to its place under another name first, so that a broken download leaves no half of it.
place() { mv "$1" "$2.part" && mv "$2.part" "$2" && echo "wrote $2"; }

if [[ ! -s $data/jargon.txt ]]; then
  unpacked jargon-text
  gzip -dc "$work/tree/usr/share/doc/jargon-text/jargon.txt.gz" >"$work/jargon.txt"
  place "$work/jargon.txt" "$data/jargon.txt"
fi
if [[ ! -s $data/data.noun ]]; then
  unpacked wordnet-base
  place "$work/tree/usr/share/wordnet/data.noun" "$data/data.noun"
fi
if [[ ! -s $data/rRNA16S.gold.fasta ]]; then
  unpacked microbiomeutil-data
  place "$work/tree/usr/share/microbiomeutil-data/RESOURCES/rRNA16S.gold.fasta" "$data/rRNA16S.gold.fasta"
fi
if [[ ! -d $data/fashion-mnist ]]; then
  unpacked dataset-fashion-mnist
  place "$work/tree/usr/share/datasets/fashion-mnist" "$data/fashion-mnist"
fi
