#!/usr/bin/env bash
# From a fresh clone to the result of all tests. Works from any folder; everything it makes lies under build/.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--cuda] [--preset NAME] [--jobs N] [--no-install]
  --cuda         the CUDA backend, too: on an emulated GPU, and compiled for a real one where nvcc is
  --preset NAME  release (default), debug, asan or clang; builds in build/NAME
  --jobs N       compilers and tests at a time (default: number of cores)
  --no-install   use the machine as it is, without apt-get install
Installs what is missing, configures, builds and runs every test. Exit status 0 only if all passed.
TEXT
}

say() { printf 'tests: %s\n' "$*"; }
die() { printf 'tests: %s\n' "$*" >&2; exit 1; }
bad() { printf 'tests: %s (--help lists the options)\n' "$*" >&2; exit 2; }

preset=release jobs=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) install=1 with= cuda=(-DSLUICE_CUDA=OFF)
while (($#)); do
  case $1 in
    --preset | --jobs)
      if [[ ! ${2-} || $2 == --* ]]; then bad "$1 needs a value"; fi
      if [[ $1 == --preset ]]; then preset=$2; else jobs=$2; fi
      shift ;;
    --no-install) install=0 ;;
    --cuda) with=-cuda cuda=(-DSLUICE_CUDA=AUTO) ;;
    -h | --help) usage; exit 0 ;;
    *) bad "unknown option '$1'" ;;
  esac
  shift
done
[[ $preset =~ ^(release|debug|asan|clang)$ ]] || bad "unknown preset '$preset'"
if [[ $preset == asan ]]; then cuda=(); fi # it has the emulated GPU, whose memory the sanitizers see
[[ $jobs =~ ^[1-9][0-9]*$ ]] || bad "--jobs needs a number, got '$jobs'"

cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/$preset
if ((install)); then bash tests/install_deps.sh --tests; fi

generator=()
if [[ ! -f $build/CMakeCache.txt ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
say "configuring in $build"
cmake --preset "$preset" ${generator[@]+"${generator[@]}"} -DSLUICE_BUILD_TESTS=ON -DSLUICE_BUILD_EXAMPLES=ON ${cuda[@]+"${cuda[@]}"}

say "building, $jobs at a time"
begun=$SECONDS
cmake --build "$build" --parallel "$jobs" || die 'the build failed'
seconds=$((SECONDS - begun))
library=$build/libsluice.so
if [[ ! -e $library ]]; then library=$build/libsluice.dylib; fi
size=$(wc -c <"$library")

say "testing, $jobs at a time"
begun=$SECONDS status=0
# One more than processors: some tests wait for ranks that have failed.
ctest --test-dir "$build" --output-on-failure --parallel $((jobs + 1)) || status=$?

log=$build/Testing/Temporary/LastTest.log
summary=$build/summary${with}.txt # docs/claims.py reads it
{
  say "library, examples and tests built in $seconds s; ${library##*/} has $((size / 1024)) KiB"
  say "all tests took $((SECONDS - begun)) s"
  { grep -hE '^(All tests passed|test cases:|assertions:)' "$log" || echo 'no result: they did not run to their end'; } |
    tr -s ' ' | while read -r line; do say "unit tests: $line"; done
  for table in "$build"/*_table.txt; do
    if [[ -f $table ]]; then say "table: $table"; fi
  done
  if ((status)); then say 'FAILED'; else say 'passed'; fi
} | tee "$summary"
exit "$status"
