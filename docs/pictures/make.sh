#!/usr/bin/env bash
# Makes the pictures of docs/pictures again, each by the command that its line below names. Works from any folder.
# Those of docs/pictures/claims come with their page, from examples/claims.sh.
set -euo pipefail

# picture | command, run in the top folder with the built programs in PATH | pages that show it
# The last step of a command draws; what stands before it measures, and leaves its figures in docs/pictures/data.
pictures=(
  "gallery|\
gallery --out docs/pictures/gallery.svg|README.md"
  "training|\
python3 docs/pictures/terminal.py record docs/pictures/data/training.json gau_lm --text build/data/jargon.txt \
--minutes 3 --evals 10 --out build/pictures --fresh && \
python3 docs/pictures/terminal.py draw docs/pictures/data/training.json docs/pictures/training.svg|examples/README.md"
  "curve|\
gau_lm --text build/data/jargon.txt --minutes 3 --evals 10 --out build/pictures && \
cp build/pictures/curve.svg docs/pictures/curve.svg|examples/MEASURED.md"
  "speed|\
python3 docs/pictures/plots.py speed tests/bench/README.md docs/pictures/speed.svg|tests/bench/README.md"
  "length|\
length > docs/pictures/data/length.txt && \
python3 docs/pictures/plots.py length docs/pictures/data/length.txt docs/pictures/length.svg|tests/bench/MEASURED.md"
  "gates|\
gates --text build/data/jargon.txt > docs/pictures/data/gates.json && \
python3 docs/pictures/plots.py gates docs/pictures/data/gates.json docs/pictures/gates.svg|layers/LAYERS.md"
  "tape|\
picture_data > build/pictures/data.json && \
python3 docs/pictures/engines.py tape build/pictures/data.json docs/pictures/tape.svg|docs/how/1-tape.md"
  "attention_tiles|\
picture_data > build/pictures/data.json && \
python3 docs/pictures/engines.py attention_tiles build/pictures/data.json docs/pictures/attention_tiles.svg|\
docs/how/3-attention.md"
  "scan_chunks|\
picture_data > build/pictures/data.json && \
python3 docs/pictures/engines.py scan_chunks build/pictures/data.json docs/pictures/scan_chunks.svg|docs/how/4-scan.md"
  "maps|\
python3 docs/pictures/drawings.py maps docs/how/2-maps.md docs/pictures/maps.svg|docs/how/2-maps.md"
  "gemm|\
python3 docs/pictures/drawings.py gemm ops/MEASURED.md docs/pictures/gemm.svg|docs/how/5-gemm.md"
  "streams|\
python3 docs/pictures/drawings.py streams examples/MEASURED.md docs/pictures/streams.svg|docs/how/6-streams.md"
)

usage() {
  cat <<'TEXT'
usage: docs/pictures/make.sh [--only NAME[,NAME…]] [--programs FOLDER] [--list]
  --only NAMES       make these only
  --programs FOLDER  take built programs from there instead of building a Release in build/release
  --list             print picture | command | pages, and make nothing
Times are those of this machine: run it while nothing else does. The figures of `speed` are those of the page it reads;
tests/bench/compare.py and docs/claims.py write them. The pictures, their commands, and the pages that show them:
TEXT
  local line
  for line in "${pictures[@]}"; do
    printf '\n  %s (%s)\n' "${line%%|*}" "${line##*|}"
    line=${line#*|} && printf '    %s\n' "${line%|*}"
  done
}
say() { printf 'pictures: %s\n' "$*"; }
bad() { printf 'pictures: %s (--help lists the options)\n' "$*" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
only='' programs=''
while (($#)); do
  case $1 in
    --only | --programs)
      if [[ ! ${2-} || $2 == --* ]]; then bad "$1 needs a value"; fi ;;
  esac
  case $1 in
    --only) only=,$2, && shift 2 ;;
    --programs)
      [[ -x $2/gallery ]] || bad "$2 has no program gallery"
      programs=$(cd "$2" && pwd) && shift 2 ;;
    --list) printf '%s\n' "${pictures[@]}"; exit 0 ;;
    -h | --help) usage; exit 0 ;;
    *) bad "unknown option $1" ;;
  esac
done
wanted=()
for line in "${pictures[@]}"; do
  if [[ ! $only || $only == *,${line%%|*},* ]]; then wanted+=("$line") only=${only/,${line%%|*},/,}; fi
done
if [[ $only && $only != , ]]; then bad "no such picture:$(printf '%s' "${only%,}" | tr ',' ' ')"; fi

cd "$root"
if [[ ! $programs ]]; then
  programs=$root/build/release/examples
  say 'building a Release in build/release'
  mkdir -p build
  cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
  { cmake -S . -B build/release -DCMAKE_BUILD_TYPE=Release -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_EXAMPLES=ON &&
    cmake --build build/release --parallel "$cores" --target gallery gates gau_lm length picture_data; } \
    >build/pictures.log 2>&1 || { tail -n 40 build/pictures.log >&2; exit 1; }
fi
mkdir -p build/pictures docs/pictures/data
if [[ ${wanted[*]} == *build/data/jargon.txt* && ! -s build/data/jargon.txt ]]; then bash examples/fetch_data.sh; fi
PATH=$programs:$PATH
for line in "${wanted[@]}"; do
  name=${line%%|*} command=${line#*|} command=${command%|*}
  say "$name: $command"
  bash -euc "$command"
done
say "made ${#wanted[@]} of ${#pictures[@]}"
