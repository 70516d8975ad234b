#!/usr/bin/env bash
# The programs of the READMEs: extract.sh SOURCE OUT writes the n-th block ```cpp of FOLDER/README.md to OUT/FOLDER_README_n.inc
# and, where a block without a language follows it, what it prints to OUT/FOLDER_README_n.out, a string literal; main() is
# called program() there, and … stands for nothing. A page of docs/guide, NAME.md, becomes a source file, OUT/docs_guide_NAME.cpp
# (page.awk). It prints the names of all files. What has not changed is not written again.
set -euo pipefail
source=$1 out=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

rm -rf "$out.new"
mkdir -p "$out" "$out.new"
find "$source" -mindepth 1 \( -name '.?*' -o -name 'build*' \) -prune -o -name '*.md' -print | LC_ALL=C sort | while read -r page; do
  name=${page#"$source"/}
  name=${name%.md}
  if [[ $name == docs/guide/* && $name != */README ]]; then
    awk -v page="$name.md" -f "$here/page.awk" "$page" >"$out.new/${name//\//_}.cpp"
    continue
  fi
  awk -v base="$out.new/${name//\//_}" '
    /^```/ && !inside { inside = 1; program = $0 == "```cpp"; result = $0 == "```" && after == n && n; if (program) n++; next }
    /^```/ { inside = 0; if (result) print ")~\"" >output; if (program) after = n; next }
    inside && program { sub(/^int main\(/, "auto program("); gsub(/…/, ""); print >(base "_" n ".inc") }
    inside && result { if (output != base "_" n ".out") printf "R\"~(" >(output = base "_" n ".out"); print >output }
    !inside && NF { after = 0 }' "$page"
done
for path in "$out.new"/*; do
  name=${path##*/}
  cmp -s "$path" "$out/$name" || cp "$path" "$out/$name"
  printf '%s\n' "$name"
done
for path in "$out"/*; do
  [[ -e $out.new/${path##*/} ]] || rm "$path"
done
rm -rf "$out.new"
