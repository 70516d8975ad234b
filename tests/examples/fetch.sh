#!/usr/bin/env bash
# examples/fetch_data.sh with packages of this test's own. Called by ctest: fetch.sh SOURCE OUT
set -euo pipefail
source=$1 out=$2
bad() { printf '%s\n' "$*" >&2; exit 1; }

rm -rf "$out"
mkdir -p "$out/bin" "$out/broken"
printf '#!/usr/bin/env bash\n: >"${@: -1}_1.deb"\n' >"$out/bin/apt-get"
cat >"$out/bin/dpkg-deb" <<'STUB'
#!/usr/bin/env bash
folder=$3/usr/lib/python3/dist-packages/sklearn/datasets/data
mkdir -p "$folder" "$3/usr/share/wordnet"
printf nouns >"$3/usr/share/wordnet/data.noun"
printf '1,2\n' | gzip | head -c "${HALF:-1000}" >"$folder/digits.csv.gz"
STUB
chmod +x "$out"/bin/*
export PATH=$out/bin:$PATH
fetch() { bash "$source/examples/fetch_data.sh" "$@"; }

cd "$out"
fetch 'relative folder' data.noun digits.csv >said.txt # from the folder where the user is
[[ $(cat 'relative folder/data.noun') == nouns && $(cat 'relative folder/digits.csv') == 1,2 ]] || bad 'not fetched'
[[ $(grep -c "^wrote $out/relative folder/" said.txt) == 2 ]] || bad "said: $(cat said.txt)"
[[ $(fetch 'relative folder' digits.csv) == '' ]] || bad 'fetched what was there'
if fetch . no_such_file 2>/dev/null; then bad 'there is no no_such_file'; fi
# A broken download is an error each time, and leaves nothing.
for _ in 1 2; do
  if HALF=15 fetch broken digits.csv 2>/dev/null; then bad 'half a file was taken'; fi
  [[ $(ls broken) == '' ]] || bad "left: $(ls broken)"
done
