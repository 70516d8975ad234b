#!/usr/bin/env bash
# Which lines and branches of the library the tests reach, by file. Works from any folder and writes only to build/.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/coverage.sh [--build FOLDER] [--jobs N] [--tests REGEX] [--report-only]
  --build FOLDER   where to build (default: build/coverage)
  --jobs N         compilers and tests at a time (default: number of cores)
  --tests REGEX    the tests of ctest to run (default: those of the CPU, the emulated device, ranks and layer_check)
  --report-only    count again what earlier runs left
Builds library and tests with g++'s counters, runs the tests — with every instruction set that the machine has, on the
emulated device, with ranks as processes, with random calls — and writes table.txt, and unreached.txt with what nothing
reached, to FOLDER. That takes two cores an hour.
TEXT
}
say() { printf 'coverage: %s\n' "$*"; }
bad() { printf 'coverage: %s (--help lists the options)\n' "$*" >&2; exit 2; }

build=build/coverage jobs=$(nproc) run=1 failed=0
tests='^(sluice_tests|sluice_fuzz|layer_check|mpi_)'
while (($#)); do
  case $1 in
    --build | --jobs | --tests)
      if [[ ! ${2-} || $2 == --* ]]; then bad "$1 needs a value"; fi
      printf -v "${1#--}" %s "$2"
      shift ;;
    --report-only) run=0 ;;
    -h | --help) usage; exit 0 ;;
    *) bad "unknown option '$1'" ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || bad "--jobs needs a number, got '$jobs'"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ((run)); then
  generator=() counted='--coverage -fprofile-update=atomic -fno-early-inlining -finline-small-functions'
  if [[ ! -f $build/CMakeCache.txt ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  # -O1: what the compiler folds away is no branch of the program. -fno-early-inlining: a function gets its counters
  # before it is inlined, so its copies are no branches of their own. Counters of threads would be wrong if not atomic.
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_CXX_COMPILER="${CXX:-g++}" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -DNDEBUG $counted" -DSLUICE_CUDA=EMULATE >/dev/null
  say 'building'
  cmake --build "$build" --parallel "$jobs" --target \
    sluice_tests sluice_cuda_tests sluice_mpi_tests sluice_failing_ranks sluice_without_mpi sluice_fuzz \
    layer_check_tests gau_lm 19_own_model >"$build/build.log"
  find "$build" -name '*.gcda' -delete
  # A rank that ends by MPI_Abort would leave no counts.
  printf '#include <cstdlib>\nextern "C" int MPI_Abort(void*, int code) { std::exit(code); }\n' |
    "${CXX:-g++}" -x c++ -shared -fPIC -o "$build/abort.so" -
  say 'testing'
  LD_PRELOAD=$(realpath "$build")/abort.so ctest --test-dir "$build" --parallel "$jobs" --timeout 3000 -R "$tests" |
    tail -n 25 || failed=1
  # Of the device's own tests those of the library's part: graphs, fused gates, optimisers. Kernels would take an hour.
  (cd "$build" && tests/cuda/sluice_cuda_tests 'graph*,*gate*,*optim*,*launch*') | tail -n 3 || failed=1
fi
say 'counting'
python3 tests/coverage.py "$build"
exit "$failed"
