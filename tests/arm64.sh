#!/usr/bin/env bash
# Builds for arm64 on another machine and runs the tests of one process under qemu: all, and with a processor that has no
# BF16 instructions those of the op table. Needs a compiler and Sluice's libraries for arm64 (tests/platforms.sh arm64 installs
# them), and hours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
if [[ ${1-} == --jobs ]]; then jobs=$2; fi
build=build/arm64

cmake -G Ninja -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static -DSLUICE_CUDA=OFF -DSLUICE_MPI=OFF
cmake --build "$build" --parallel "$jobs"

# Programs that compute on one thread: the emulator's threads take turns anyway.
export OPENBLAS_NUM_THREADS=1
tests() { # cpu regular expression
  QEMU_CPU=$1 ctest --test-dir "$build" --output-on-failure --parallel "$jobs" --tests-regex "$2" || failed=1
  { grep -hE '^(All tests passed|test cases:|assertions:)' "$build/Testing/Temporary/LastTest.log" || echo 'no result'; } |
    tr -s ' ' | while read -r line; do echo "unit tests: $1: $line"; done
}
failed=0
# The emulator ignores the bound on memory that sluice_fuzz sets for itself.
(ulimit -v 1200000 && QEMU_CPU=max ctest --test-dir "$build" --output-on-failure --tests-regex '^sluice_fuzz$') || failed=1
tests max '^sluice_tests|^example_0'
tests cortex-a72 '^sluice_tests_ops$'
exit "$failed"
