#!/usr/bin/env bash
# usage: on_gpu.sh [--emulated] [--smoke] [--limit SECONDS] [--out FOLDER] PART… BUILD
#
# Runs parts of the tests and benchmarks of BUILD on a real GPU (--emulated: on the emulated one), and tells in a table what
# became of them. `all` are all of them, in seven to nine minutes if nothing hangs: each kernel of tensor cores in a process of
# its own, tests four at a time, one that takes most of the memory, sanitizers on the kernels of rung 4, then measurements one
# after the other. What fails or hangs takes nothing from the others. FOLDER (default: $OUT from the environment, else BUILD/gpu) gets table.txt and log.txt, to which each part adds its
# rows as it ends: a run that is stopped keeps them. --limit: no part takes longer. --smoke: so little of each that the
# emulated device does it in seconds.
#
#        on_gpu.sh pack FILE.tar.gz BUILD
#
# Puts what that needs, libraries of the system included, into an archive for a machine with a GPU and neither compilers nor TBB:
#   tar xf FILE.tar.gz && gpu/on_gpu.sh all gpu
# BUILD must be configured with -DSLUICE_ARCH=x86-64-v3, or '' for the instructions that all x86-64 processors have.
#
# Exit status 0 if all passed, for which all their programs must be there; 2 if the machine cannot run them: no cuBLASLt, no NCCL, a processor without the instructions.
# Without a GPU: 77, which CTest calls skipped; with SLUICE_REQUIRE_CUDA=1 in the environment the parts run anyway, and say what
# is missing. SLUICE_SEARCH_ROOT: where libraries are looked for that the loader does not find (default: /).
set -uo pipefail

die() { printf 'on_gpu: %s\n' "$*" >&2; exit 2; }

device=gpu smoke='' out='' most='' words=()
while (($#)); do
  case $1 in
    --emulated) device=emulated
      export SLUICE_CUDA_DEFER=1 ;; # launches are done when the host waits for them, as late as on a GPU
    --smoke) smoke=1 ;;
    --out) out=${2-}; shift ;;
    --limit) most=${2-}; shift ;;
    -*) die "unknown option '$1'; the first lines of $0 say what there is" ;;
    *) words+=("$1") ;;
  esac
  shift
done
((${#words[@]} >= 2)) || die 'need a part and the build folder'
build=$(cd "${words[-1]}" 2>/dev/null && pwd) || die "no folder ${words[-1]}"
unset 'words[-1]'

if [[ ${words[0]} == pack ]]; then
  (( ${#words[@]} == 2 )) || die 'pack needs the archive and the build folder'
  [[ -e $build/CMakeCache.txt ]] || die "$build/CMakeCache.txt is not there, which says for which processors it was built"
  arch=$(sed -n 's/^SLUICE_ARCH:[^=]*=//p' "$build/CMakeCache.txt")
  [[ -z $arch || $arch == x86-64-v3 ]] ||
    die "$build was built for '$arch', whose instructions the other machine may not have; configure with -DSLUICE_ARCH=x86-64-v3"
  folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
  mkdir -p "$folder"/gpu/tests/cuda "$folder"/gpu/cuda
  cp "$0" "$folder/gpu/on_gpu.sh"
  echo "$arch" >"$folder/gpu/arch"
  shopt -s nullglob
  files=("$build"/libsluice*.so* "$build"/tests/sluice_{tests,fuzz} "$build"/tests/cuda/sluice_gpu_* "$build"/cuda/bench_ladder)
  for file in "${files[@]}"; do
    [[ -e $file ]] || { echo "on_gpu: ${file#"$build"/} is not built"; continue; }
    cp -d "$file" "$folder/gpu/${file#"$build"/}"
    [[ -L $file ]] || strip "$folder/gpu/${file#"$build"/}"
  done
  LD_LIBRARY_PATH=$build ldd "$folder"/gpu/*.so "$folder"/gpu/tests/sluice_* | awk '$2 == "=>" { print $3 }' | sort -u |
    grep -vE "^$build|/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\\+\\+|libgcc_s)[-.]" | xargs -I{} cp -L {} "$folder/gpu/"
  tar -C "$folder" -czf "${words[1]}" gpu || die "cannot write ${words[1]}"
  bytes=$(stat -c %s "${words[1]}") bound=$((${SLUICE_PACK_MIB:-60} << 20))
  printf 'on_gpu: %s has %d.%d MiB\n' "${words[1]}" $((bytes >> 20)) $(((bytes % 1048576) * 10 / 1048576))
  ((bytes <= bound)) || { rm "${words[1]}"; die "that is more than $((bound >> 20)) MiB, which a machine may refuse"; }
  exit
fi

if [[ $device == gpu && ${SLUICE_REQUIRE_CUDA-} != 1 && ! -e /dev/nvidiactl && ! -e /dev/dxg ]]; then
  echo 'no GPU here'
  exit 77
fi
if [[ -s $build/arch && $(<"$build/arch") == x86-64-v3 ]]; then
  for flag in avx2 bmi2 fma movbe; do
    grep -qw "$flag" "${SLUICE_CPUINFO:-/proc/cpuinfo}" || die "the archive is for x86-64-v3, and this processor has no $flag"
  done
fi
export SLUICE_TEST_DEVICE=cuda SLUICE_CUDA=$device
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # a build folder from elsewhere

# The folder of a library whose file has one of the names: among those of the loader, beside a toolkit, or anywhere.
folder_of() {
  local root=${SLUICE_SEARCH_ROOT:-/} name folder found places=()
  IFS=: read -ra places <<<"$LD_LIBRARY_PATH"
  for folder in "${places[@]}" "${root%/}"/usr/local/cuda*/{lib64,targets/x86_64-linux/lib} "${root%/}"/usr/lib/x86_64-linux-gnu; do
    for name in "$@"; do
      if [[ -e $folder/$name ]]; then echo "$folder"; return; fi
    done
  done
  for name in "$@"; do
    found=$(find "$root" -xdev -name "$name" -print -quit 2>/dev/null)
    if [[ $found ]]; then dirname "$found"; return; fi
  done
  return 1
}
if [[ $device == gpu ]]; then
  blas=$(folder_of libcublasLt.so.13 libcublasLt.so.12) ||
    die 'no libcublasLt.so.13 or .12 on this machine: every product would be ten times slower, and what is measured worth nothing'
  nccl=$(folder_of libnccl.so.2) || die 'no libnccl.so.2 on this machine, which ranks need'
  export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$blas:$nccl
fi

ops='op cases: forward*,op cases: fused*,op cases: gradients equal*,op cases: f32*,op cases: second*,op cases: large*,linear_scan: strong*'
layers='table: gradients*,table: a *,table: the state*,table: documents*,table: padding*,table: NaN*,table: no *,table: f32*'
layers+=',training: GAU*'
ranks='collectives: values*,sequence: ranks*,sequence: cut*' # all on one GPU, where NCCL refuses
kernels='[cuda],cuda: *'
if [[ $smoke ]]; then ops='op cases: fused*' layers='training: GAU*' ranks='collectives: values*' kernels='cuda attention: sizes of 0,cuda: T5*'; fi

# Parts in their order. `rungs` are many: one for each kernel.
tests=(life ops layers kernels graphs models ranks beyond fuzz)
sanitizers=(memcheck racecheck synccheck)
measurements=(ladder-1024 ladder-2048 ladder-4096 ladder-8192 ladder-16384 memory products training profile)
rungs=$build/tests/cuda/sluice_gpu_rungs
all_rungs() {
  local names
  names=$(timeout 15 "$rungs" --list 2>/dev/null) || { echo rung:list; return; } # it runs, and says why not
  sed 's/^/rung:/' <<<"$names"
}

# The program of a part, and the seconds that it may take.
command_of() {
  local gpu=$build/tests/cuda/sluice_gpu_tests bench=$build/tests/cuda/sluice_gpu_bench ladder=$build/tests/bench/bench_ladder
  local sanitizer=compute-sanitizer
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin type -P $sanitizer || echo $sanitizer)
  [[ -x $ladder ]] || ladder=$build/cuda/bench_ladder
  [[ $device == gpu ]] || ladder='' sanitizer='' # they are for a real one
  case $1 in
    rung:*) limit=15 command=("$rungs" ${smoke:+--small} "${1#rung:}") ;;
    life) limit=45 command=("$gpu" '[life]') ;;
    ops) limit=100 command=("$build/tests/sluice_tests" "$ops") ;;
    layers) limit=100 command=("$build/tests/sluice_tests" "$layers") ;;
    ranks) limit=50 command=("$build/tests/sluice_tests" "$ranks") ;;
    kernels) limit=120 command=("$gpu" "$kernels") ;;
    graphs) limit=60 command=("$gpu" '[graph]') ;;
    models) limit=100 command=("$gpu" '[gpu]~[life]~[beyond]') ;;
    beyond) limit=50 command=("$gpu" '[beyond]') ;;
    fuzz) limit=30 command=("$build/tests/sluice_fuzz" --seconds "${smoke:-10}") ;;
    products | memory | training | profile) limit=60 command=("$bench" ${smoke:+--smoke} "$1") ;;
    ladder-*) limit=30 command=("$ladder" "${1#ladder-}" $((131072 / ${1#ladder-}))) ;; # as many tokens in all
    memcheck | racecheck | synccheck)
      limit=30 command=("$sanitizer" --tool "$1" --error-exitcode 9 "$rungs" --small)
      command+=(rung4-{forward,dq}-d{64,128}-softmax rung4-{forward,dq,dkv}-d64-relu2)
      # racecheck takes ten times as long. Of an mbarrier it sees the threads that arrive, and not those for which one does
      # after a named barrier: it calls it a race when dkv with softmax uses the room of lse and δ again.
      if [[ $1 == racecheck ]]; then limit=60; else command+=(rung4-dkv-d{64,128}-softmax); fi ;;
    *) die "no part is called '$1'; there are rungs ${sanitizers[*]} ${tests[*]} ${measurements[*]}, and all" ;;
  esac
  [[ $device == gpu ]] || ((limit *= 6))
  if [[ $most ]] && ((most < limit)); then limit=$most; fi
}

first=() together=() alone=() last=() # rungs; tests; what runs by itself; what is measured, one after the other
take() {
  case $1 in
    all) for part in rungs "${tests[@]}" "${sanitizers[@]}" "${measurements[@]}"; do take "$part"; done ;;
    rungs) while read -r part; do first+=("$part"); done < <(all_rungs) ;;
    ladder) for part in "${measurements[@]}"; do [[ $part != ladder-* ]] || take "$part"; done ;;
    memcheck | racecheck | synccheck | beyond) alone+=("$1") ;; # beyond: 69 GB of the GPU's memory
    products | memory | training | profile | ladder-*) command_of "$1"; last+=("$1") ;;
    *) command_of "$1"; together+=("$1") ;;
  esac
}
for word in "${words[@]}"; do take "$word"; done

out=${out:-${OUT:-$build/gpu}}
mkdir -p "$out" || die "cannot make $out"
work=$(mktemp -d) || die 'no folder for what the parts say'
trap 'rm -rf "$work"' EXIT
: >"$out/log.txt"
if [[ $device == gpu ]]; then
  { nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -1; echo "cuBLASLt in $blas, NCCL in $nccl"; }
else
  echo 'an emulated device'
fi >"$out/table.txt"

# Writes what became of a part: one row, and the rows of its log that tell something.
tell() {
  local log=$work/$1.log
  {
    flock 9
    { printf '\n======== %s ========\n' "$1"; cat "$log"; } >>"$out/log.txt"
    {
      printf '%s  %s\n' "$(<"$work/$1.end")" "$(grep -hE '^(All tests passed|test cases:|[0-9]+ calls|sluice_fuzz:)' "$log" | tail -1)"
      grep -E 'TFLOP/s|GB/s|tokens/s|ms in kernels$|off by|WRONG|ERROR SUMMARY' "$log" | sed 's/^/    /'
      if ! grep -q ' ok ' "$work/$1.end"; then
        grep -hE '^[^ ].*:[0-9]+: FAILED:|FAILED: |^error|due to|DeviceError|CUDA|cuda:' "$log" | grep -vE 'TFLOP/s|GB/s|tokens/s' | head -3 | sed 's/^/    /'
      fi
    } | sed 's/ *$//' >>"$out/table.txt"
  } 9>>"$out/table.txt"
}

run() { # a part: what it says goes to $work/PART.log, what became of it to $work/PART.end
  local limit command begun=${EPOCHREALTIME/[.,]/} status=0 end tenths
  command_of "$1"
  if [[ -x ${command[0]} ]]; then
    if [[ $1 == life ]]; then export CUDA_LAUNCH_BLOCKING=1; fi # a kernel that fails is named
    timeout --kill-after=5 "$limit" "${command[@]}" >"$work/$1.log" 2>&1 </dev/null || status=$?
    end=$(case $status in 0) echo ok ;; 124 | 137) echo "TIME OUT" ;; *) echo "FAILED $status" ;; esac)
    if [[ $end == ok ]] && grep -qE '(FAILED:|WRONG)' "$work/$1.log"; then end='FAILED'; fi
    if [[ $end == ok && ${command[0]} == *_tests ]] && ! grep -qE '^(All tests passed|test cases:)' "$work/$1.log"; then end='not there'; fi
  elif [[ ${command[0]} ]]; then
    echo "error: there is no ${command[0]}" >"$work/$1.log"
    end='FAILED 127'
  else
    echo 'only for a real device' >"$work/$1.log"
    end='not there'
  fi
  tenths=$(((${EPOCHREALTIME/[.,]/} - begun) / 100000))
  printf '%-12s %-10s %4d.%d s' "$1" "$end" $((tenths / 10)) $((tenths % 10)) >"$work/$1.end"
  printf 'on_gpu: %s\n' "$(<"$work/$1.end")" >&2
  tell "$1"
}
four_at_a_time() {
  local jobs=0
  for part in "$@"; do
    run "$part" &
    if [[ $part == life ]]; then wait; jobs=0; continue; fi # alone: what it finds is told first
    if ((++jobs == 4)); then wait -n; ((jobs--)); fi
  done
  wait
}

four_at_a_time "${first[@]}"
four_at_a_time "${together[@]}"
for part in "${alone[@]}" "${last[@]}"; do run "$part"; done

failed=0
for part in "${first[@]}" "${together[@]}" "${alone[@]}" "${last[@]}"; do
  grep -qE ' (ok|not there) ' "$work/$part.end" || failed=1
done
if ((${#words[@]} == 1)) && [[ ${words[0]} != all && ${words[0]} != rungs && ${words[0]} != ladder ]]; then cat "$work/${words[0]}.log"; fi
cat "$out/table.txt"
exit "$failed"
