#!/usr/bin/env bash
# on_gpu.sh without a GPU and without a build: a folder of small programs takes the build's place.
set -uo pipefail
script=$(cd "$(dirname "$0")" && pwd)/on_gpu.sh
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failed=0
check() { # what it shows, and the command that must succeed
  local what=$1
  shift
  if "$@"; then echo "ok      $what"; else echo "FAILED  $what"; failed=1; fi
}
says() { grep -qF -- "$1" said; }
program() { printf '#!/bin/bash\n%s\n' "$2" >"build/$1" && chmod +x "build/$1"; }

mkdir -p build/tests/cuda empty/lib libraries
program tests/sluice_tests 'echo "All tests passed"'
program tests/cuda/sluice_gpu_rungs '
if [[ $1 == --list ]]; then printf "rung4-%s\n" a b c; exit; fi
case $1 in *b) sleep 5 ;; *c) echo "rung4-c off by 1   WRONG" ;; *) echo "rung4-a off by 1e-3" ;; esac'
program tests/cuda/sluice_gpu_bench 'echo "copy 1000 GB/s"; echo "a step   12.00 ms in kernels"; if [[ $1 == training ]]; then sleep 5; fi'
run() { bash "$script" "$@" >said 2>&1; }
status() { local got=0 want=$1; shift; run "$@" || got=$?; ((got == want)); }

# -- pack ----------------------------------------------------------------------------------------------------
check 'pack: a folder that is no build' status 2 pack a.tar.gz build
echo 'SLUICE_ARCH:STRING=native' >build/CMakeCache.txt
check 'pack: a native build is refused' status 2 pack a.tar.gz build
check 'pack: and says how to configure' says '-DSLUICE_ARCH=x86-64-v3'
check 'pack: and writes nothing' test ! -e a.tar.gz
echo 'SLUICE_ARCH:STRING=' >build/CMakeCache.txt
check 'pack: a build for all processors is taken' status 0 pack a.tar.gz build
echo 'SLUICE_ARCH:STRING=x86-64-v3' >build/CMakeCache.txt
check 'pack: a build for x86-64-v3 is taken' status 0 pack a.tar.gz build
check 'pack: and its size is told' grep -qE 'a.tar.gz has 0\.[0-9] MiB' said
export SLUICE_PACK_MIB=0
check 'pack: an archive that is too large is refused' status 2 pack b.tar.gz build
check 'pack: and not kept' test ! -e b.tar.gz
unset SLUICE_PACK_MIB
tar xf a.tar.gz
check 'pack: the archive has the script and the programs' test -x gpu/on_gpu.sh -a -x gpu/tests/cuda/sluice_gpu_bench

# -- the machine ---------------------------------------------------------------------------------------------
export SLUICE_REQUIRE_CUDA=1 SLUICE_SEARCH_ROOT=$folder/empty
printf 'flags : sse2 avx2 bmi2 movbe\n' >cpuinfo
SLUICE_CPUINFO=cpuinfo check 'a processor without an instruction set is refused' status 2 memory gpu
check 'and it is named' says 'no fma'
printf 'flags : sse2 avx2 bmi2 movbe fma\n' >cpuinfo
export SLUICE_CPUINFO=cpuinfo
check 'without cuBLASLt nothing runs' status 2 memory gpu
check 'and it is named' says 'no libcublasLt'
touch libraries/libcublasLt.so.13
SLUICE_SEARCH_ROOT=$folder/libraries check 'without NCCL nothing runs' status 2 memory gpu
check 'and it is named' says 'no libnccl'
mkdir -p libraries/deep/down && touch libraries/deep/down/libnccl.so.2
export SLUICE_SEARCH_ROOT=$folder/libraries
check 'with both, wherever they lie, it runs' status 0 --out out memory gpu
check 'and says where they are' says "NCCL in $folder/libraries/deep/down"
touch gpu/libcublasLt.so.12
SLUICE_SEARCH_ROOT=$folder/libraries check 'those of the archive come first' status 0 memory gpu
check 'as the table says' says "cuBLASLt in $folder/gpu"

# -- parts ---------------------------------------------------------------------------------------------------
check 'one kernel that hangs and one that is wrong' status 1 --limit 2 --out out rungs memory gpu
check 'the others are told' says 'rung4-a off by 1e-3'
check 'the one that hangs' grep -qE '^rung:rung4-b +TIME OUT' out/table.txt
check 'the one that is wrong' grep -qE '^rung:rung4-c +FAILED' out/table.txt
check 'and the next part runs' grep -qF '1000 GB/s' out/table.txt
check 'a part that is killed keeps its rows' status 1 --limit 1 --out out training gpu
check 'as the table says' grep -qF '1000 GB/s' out/table.txt
check 'so does a profile' status 0 --out out profile gpu
check 'with the lines above its rows' grep -qF '12.00 ms in kernels' out/table.txt
check 'a part whose program is not built fails' status 1 --out out ladder-1024 memory gpu
check 'and the program is named' grep -qE 'there is no .*bench_ladder$' out/table.txt
check 'the next part runs' grep -qE '^memory +ok' out/table.txt
run --out out memcheck layers gpu
check 'sanitizers run after tests' test "$(grep -oE '^(memcheck|layers)' out/table.txt | xargs)" = 'layers memcheck'
OUT=$folder/kept bash "$script" memory training gpu >said 2>&1 &
for ((i = 0; i < 100; ++i)); do
  if grep -qs 'GB/s' kept/table.txt; then break; fi
  sleep 0.1
done
pkill -KILL -P $! 2>/dev/null
kill -KILL $! 2>/dev/null
check 'a run that is killed keeps the parts that have ended' grep -qE '^memory +ok' kept/table.txt
check 'a part that there is not is refused' status 2 nothing gpu
exit "$failed"
