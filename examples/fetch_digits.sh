#!/usr/bin/env bash
# Fetches the handwritten digits (57 KB, from the Debian package python3-sklearn) into build/data/digits.csv.
# Installs nothing and needs no root.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${1:-$root/build/data/digits.csv}
[ -s "$target" ] && { echo "have $target"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download python3-sklearn >/dev/null 2>&1 || { echo "error: the package python3-sklearn cannot be downloaded" >&2; exit 1; }
dpkg-deb -x python3-sklearn_*.deb unpacked
mkdir -p "$(dirname "$target")"
gzip -dc unpacked/usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz >"$target"
echo "wrote $target ($(wc -l <"$target") lines)"
