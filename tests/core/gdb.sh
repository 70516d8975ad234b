#!/usr/bin/env bash
# What core/text/gdb.py shows of tensors in gdb. Called by ctest: gdb.sh SAMPLE GDB_PY
set -euo pipefail
command -v gdb >/dev/null || { echo 'gdb is not installed'; exit 77; }

prints=(-ex 'print shape')
for i in {0..8}; do prints+=(-ex "print x[$i]"); done
shown=$(gdb -q -batch -nx -ex "source $2" -ex 'break stop' -ex run -ex 'set print elements 7' "${prints[@]}" "$1" 2>&1) || true
wanted='$1 = [2,0,3]
$2 = Tensor[2,3] f32 cpu requires_grad = {1, 4, 9, 16, 25, 42.25}
$3 = Tensor[3,2] f32 cpu requires_grad = {1, 4, 2, 5, 3, -6.5}
$4 = Tensor (undefined)
$5 = Tensor[2,3] bool cpu = {false, false, true, true, true, false}
$6 = Tensor[2,3] bf16 cpu = {1, 2, 3, 4, 5, -6.5}
$7 = Tensor[2,3] f64 meta
$8 = Tensor[0,3] f64 cpu = {}
$9 = Tensor[10] i64 cpu = {5, 15, 25, 35, 45, 55, 65, ...}
$10 = Tensor[2,1099511627776] f32 cpu = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...}'
if [[ $(grep '^\$' <<<"$shown") != "$wanted" ]]; then
  if grep -qi 'ptrace\|Python scripting is not supported' <<<"$shown"; then echo "gdb cannot run here: $shown"; exit 77; fi
  printf 'gdb shows:\n%s\nwanted:\n%s\n' "$shown" "$wanted"
  exit 1
fi
