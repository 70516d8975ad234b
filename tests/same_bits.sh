#!/usr/bin/env bash
# Whether two commits compute the same bits: the op table forward and two ways backward, golden cases, layers and streams.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/same_bits.sh [--isa NAME] [--jobs N] OLD [NEW]
  OLD, NEW     commits, or folders of builds with tests (NEW: build/release)
  --isa NAME   the instruction set that both compute with (avx2)
  --jobs N     compilers at a time (default: number of cores)
Prints the rows whose bits differ, and those that only one has. Exit status 0 if there are none of the first kind.
TEXT
}
bad() { printf 'same_bits: %s (--help lists the options)\n' "$*" >&2; exit 2; }

isa=avx2 jobs=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) sides=()
while (($#)); do
  case $1 in
    --isa | --jobs)
      if [[ ! ${2-} || $2 == --* ]]; then bad "$1 needs a value"; fi
      declare "${1#--}=$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    -*) bad "unknown option '$1'" ;;
    *) sides+=("$1") ;;
  esac
  shift
done
((${#sides[@]} == 1 || ${#sides[@]} == 2)) || bad 'one or two commits are needed'
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build/bits

program() { # commit or folder: prints its path
  local commit
  if [[ -x $1/tests/sluice_tests ]]; then realpath "$1/tests/sluice_tests"; return; fi
  commit=$(git rev-parse --short=12 --verify "$1^{commit}") || bad "no commit and no build: $1"
  local tree=$PWD/build/bits/$commit
  if [[ ! -d $tree ]]; then git worktree add --detach "$tree" "$commit" >&2; fi
  cmake -S "$tree" -B "$tree/build" -DCMAKE_BUILD_TYPE=Release -DSLUICE_BUILD_TESTS=ON -DSLUICE_BUILD_EXAMPLES=OFF -DSLUICE_CUDA=OFF >&2
  cmake --build "$tree/build" --parallel "$jobs" --target sluice_tests >&2
  echo "$tree/build/tests/sluice_tests"
}

old=$(program "${sides[0]}") new=$(program "${sides[1]:-build/release}")
for side in old new; do
  SLUICE_ISA=$isa "${!side}" '[.same_bits]' | grep -E '^[0-9a-f]{16} ' >"build/bits/$side"
done
awk '
  FNR == 1 { split("", times) }
  { hash = $1; sub(/^[0-9a-f]+ /, ""); if (++times[$0] > 1) $0 = $0 ", again " times[$0] }
  FNR == NR { old[$0] = hash; next }
  !($0 in old) { print "only new: " $0; next }
  { ++rows; if (old[$0] != hash) { print "differs: " $0; ++differ }; delete old[$0] }
  END {
    for (name in old) print "only old: " name
    printf "same_bits: %d of %d rows differ\n", differ, rows
    exit differ > 0
  }' build/bits/old build/bits/new
