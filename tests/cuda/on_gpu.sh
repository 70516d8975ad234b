#!/usr/bin/env bash
# usage: on_gpu.sh [--emulated] [--smoke] [--out FOLDER] PART… BUILD
#
# Runs parts of the tests and benchmarks of BUILD on a real GPU (--emulated: on the emulated one), and says last, in a table,
# what became of them. `all` are all of them, in less than nine minutes: tests four at a time, then measurements one after the
# other; what fails or hangs takes nothing from the others. FOLDER (default: BUILD/gpu) gets table.txt and log.txt. --smoke: so little
# of each that the emulated device does it in seconds.
#
#        on_gpu.sh pack FILE.tar.gz BUILD
#
# Puts what that needs, libraries of the system included, into an archive for a machine with a GPU and neither compilers nor TBB:
#   tar xf FILE.tar.gz && gpu/on_gpu.sh all gpu
#
# Exit status 0 if all passed. Without a GPU: 77, which CTest calls skipped; with SLUICE_REQUIRE_CUDA=1 in the environment the
# parts run anyway, and say what is missing.
set -uo pipefail

die() { printf 'on_gpu: %s\n' "$*" >&2; exit 2; }

device=gpu smoke= out= words=()
while (($#)); do
  case $1 in
    --emulated) device=emulated ;;
    --smoke) smoke=1 ;;
    --out) out=${2-}; shift ;;
    -*) die "unknown option '$1'; the first lines of $0 say what there is" ;;
    *) words+=("$1") ;;
  esac
  shift
done
((${#words[@]} >= 2)) || die 'need a part and the build folder'
build=$(cd "${words[-1]}" 2>/dev/null && pwd) || die "no folder ${words[-1]}"
unset 'words[-1]'
if [[ ${words[0]} == pack ]]; then
  folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
  mkdir -p "$folder"/gpu/tests/cuda "$folder"/gpu/cuda
  cp "$0" "$folder/gpu/on_gpu.sh"
  shopt -s nullglob
  files=("$build"/libsluice*.so* "$build"/tests/sluice_{tests,fuzz} "$build"/tests/cuda/sluice_gpu_* "$build"/cuda/bench_ladder)
  for file in "${files[@]}"; do
    [[ -e $file ]] || { echo "on_gpu: ${file#"$build"/} is not built"; continue; }
    cp -d "$file" "$folder/gpu/${file#"$build"/}"
    [[ -L $file ]] || strip "$folder/gpu/${file#"$build"/}"
  done
  LD_LIBRARY_PATH=$build ldd "$folder"/gpu/*.so "$folder"/gpu/tests/sluice_* | awk '$2 == "=>" { print $3 }' | sort -u |
    grep -vE "^$build|/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\\+\\+|libgcc_s)[-.]" | xargs -I{} cp -L {} "$folder/gpu/"
  tar -C "$folder" -czf "${words[1]}" gpu && ls -l "${words[1]}"
  exit
fi
if [[ $device == gpu && ${SLUICE_REQUIRE_CUDA-} != 1 && ! -e /dev/nvidiactl && ! -e /dev/dxg ]]; then
  echo 'no GPU here'
  exit 77
fi
export SLUICE_TEST_DEVICE=cuda SLUICE_CUDA=$device
export LD_LIBRARY_PATH=$build:${LD_LIBRARY_PATH-}:/usr/local/cuda/lib64 # a build folder from elsewhere, and cuBLASLt

ops='op cases: forward*,op cases: fused*,op cases: gradients equal*,op cases: f32*,op cases: second*,op cases: large*'
layers='table: gradients*,table: a *,table: the state*,table: documents*,table: padding*,table: NaN*,table: no *,table: f32*'
layers+=',training: GAU*'
ranks='collectives: values*,sequence: ranks*,sequence: cut*' # all on one GPU, where NCCL may refuse
kernels='[cuda],cuda: *'
if [[ $smoke ]]; then ops='op cases: fused*' layers='training: GAU*' ranks='collectives: values*' kernels='cuda attention: sizes of 0,cuda: T5*'; fi

# part  seconds it may take  program and arguments; what is measured comes last, and alone
tests=(life ops layers kernels graphs models ranks beyond fuzz)
measurements=(products memory training ladder memcheck)
command_of() {
  local gpu=$build/tests/cuda/sluice_gpu_tests bench=$build/tests/cuda/sluice_gpu_bench ladder=$build/tests/bench/bench_ladder
  [[ -x $ladder ]] || ladder=$build/cuda/bench_ladder
  [[ $device == gpu ]] || ladder='' # it is compiled for a real one
  case $1 in
    life) limit=45 command=("$gpu" '[life]') ;;
    ops) limit=100 command=("$build/tests/sluice_tests" "$ops") ;;
    layers) limit=100 command=("$build/tests/sluice_tests" "$layers") ;;
    ranks) limit=50 command=("$build/tests/sluice_tests" "$ranks") ;;
    kernels) limit=120 command=("$gpu" "$kernels") ;;
    graphs) limit=60 command=("$gpu" '[graph]') ;;
    models) limit=100 command=("$gpu" '[gpu]~[life]~[beyond]') ;;
    beyond) limit=50 command=("$gpu" '[beyond]') ;;
    fuzz) limit=30 command=("$build/tests/sluice_fuzz" --seconds "${smoke:-10}") ;;
    products | memory | training) limit=50 command=("$bench" ${smoke:+--smoke} "$1") ;;
    ladder) limit=75 command=("$ladder" 4096 32) ;;
    memcheck) limit=40 command=("$(type -P compute-sanitizer || echo compute-sanitizer)" --error-exitcode 9 "$gpu" '[life]') ;;
    *) die "no part is called '$1'; there are ${tests[*]} ${measurements[*]}, and all" ;;
  esac
  [[ $device == gpu ]] || ((limit *= 6))
}

now=() then=()
for part in "${words[@]}"; do
  if [[ $part == all ]]; then
    now+=("${tests[@]}") then+=("${measurements[@]}")
  elif [[ " ${measurements[*]} " == *" $part "* ]]; then
    then+=("$part")
  else
    command_of "$part"
    now+=("$part")
  fi
done

out=${out:-$build/gpu}
mkdir -p "$out" || die "cannot make $out"
work=$(mktemp -d) || die 'no folder for what the parts say'
trap 'rm -rf "$work"' EXIT

run() { # a part: what it says goes to $work/PART.log, what became of it to $work/PART.end
  local limit command begun=${EPOCHREALTIME/[.,]/} status=0 end tenths
  command_of "$1"
  if [[ -x ${command[0]} ]]; then
    if [[ $1 == life ]]; then export CUDA_LAUNCH_BLOCKING=1; fi # a kernel that fails is named
    timeout --kill-after=5 "$limit" "${command[@]}" >"$work/$1.log" 2>&1 </dev/null || status=$?
    end=$(case $status in 0) echo ok ;; 124 | 137) echo "TIME OUT" ;; *) echo "FAILED $status" ;; esac)
    if grep -qE '(FAILED:|WRONG)' "$work/$1.log"; then end='FAILED'; fi
    if [[ $end == ok && ${command[0]} == *_tests ]] && ! grep -qE '^(All tests passed|test cases:)' "$work/$1.log"; then end='not there'; fi
  else
    echo "there is no ${command[0]}" >"$work/$1.log"
    end='not there'
  fi
  tenths=$(((${EPOCHREALTIME/[.,]/} - begun) / 100000))
  printf '%-10s %-10s %4d.%d s' "$1" "$end" $((tenths / 10)) $((tenths % 10)) >"$work/$1.end"
  printf 'on_gpu: %s\n' "$(<"$work/$1.end")" >&2
}

jobs=0
for part in "${now[@]}"; do
  run "$part" &
  if [[ $part == life ]]; then wait; continue; fi # alone: what it finds is told first
  if ((++jobs == 4)); then wait -n; ((jobs--)); fi
done
wait
for part in "${then[@]}"; do run "$part"; done

# -- what they said, and what became of them -----------------------------------------------------------------
for part in "${now[@]}" "${then[@]}"; do
  printf '\n======== %s ========\n' "$part"
  cat "$work/$part.log"
done >"$out/log.txt"
failed=0
{
  if [[ $device == gpu ]]; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -1; else echo 'an emulated device'; fi
  for part in "${now[@]}"; do
    what=$(grep -hE '^(All tests passed|test cases:|[0-9]+ calls|sluice_fuzz:)' "$work/$part.log" | tail -1)
    printf '%s  %s\n' "$(<"$work/$part.end")" "$what"
    grep -q ' ok ' "$work/$part.end" || grep -hE '^[^ ].*:[0-9]+: FAILED:|^error|due to|DeviceError|CUDA|cuda:' "$work/$part.log" | head -3 | sed 's/^/    /'
  done
  for part in "${then[@]}"; do
    printf '%s\n' "$(<"$work/$part.end")"
    grep -E 'TFLOP/s|GB/s|tokens/s|FAILED|WRONG|error' "$work/$part.log" | sed 's/^/    /'
  done
} >"$out/table.txt"
for part in "${now[@]}" "${then[@]}"; do
  grep -qE ' (ok|not there) ' "$work/$part.end" || failed=1
  if [[ ${#words[@]} -eq 1 && ${words[0]} != all ]]; then cat "$work/$part.log"; fi
done
cat "$out/table.txt"
exit "$failed"
