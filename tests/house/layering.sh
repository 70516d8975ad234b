#!/usr/bin/env bash
# Who may include whom, and what no public header may include. Called by ctest: layering.sh SOURCE
set -euo pipefail
cd "$1"
shopt -s nullglob

# room: the rooms whose headers its files may include. Each line names only rooms above it and itself, so
# there is no circle.
core='core core/kernel core/memory core/number core/text'
ops='ops ops/elementwise ops/index ops/matmul ops/rows ops/shape'
engines='ops/attention ops/scan'
layers='layers/nn layers/gau'
cuda='cuda cuda/elementwise cuda/emulator cuda/rows'
rooms=()
for room in $core; do rooms+=("$room $core"); done
rooms+=("ops/gemm $core ops/gemm" "ops/gemm/rungs $core ops/gemm ops/gemm/rungs")
for room in $ops; do rooms+=("$room $core ops/gemm $ops"); done
rooms+=(
  "ops/attention $core ops/gemm $ops ops/attention"
  "ops/scan $core ops/gemm $ops ops/attention ops/scan"
  "autograd $core ops/gemm $ops $engines autograd"
  "parallel $core $ops $engines ops/gemm autograd parallel"
  "parallel/mpi $core parallel parallel/mpi"
  "layers/nn $core $ops $engines autograd parallel layers/nn"
  "layers/gau $core $ops $engines autograd parallel $layers"
  "layers/attention $core $ops $engines autograd parallel $layers layers/attention"
  "layers/linear_attention $core $ops $engines autograd parallel $layers layers/linear_attention"
  "layers/port $core $ops $engines autograd parallel layers/nn layers/port"
  "layers/models $core $ops $engines autograd parallel $layers layers/attention layers/linear_attention layers/port layers/models"
  "layers/train $core $ops ops/gemm $engines autograd parallel $layers layers/attention layers/linear_attention layers/train"
  "layers/data $core $ops ops/gemm layers/data"
  "layers/report $core $ops $engines autograd parallel $layers layers/attention layers/linear_attention layers/report"
  "layers $core ops/gemm $ops $engines autograd parallel $layers layers/attention layers/linear_attention layers/port layers/models
    layers/train layers/data layers/report layers"
  "cuda/attention $core $ops ops/gemm ops/attention $cuda cuda/attention"
  "cuda/attention/ladder $core $ops ops/gemm ops/attention $cuda cuda/attention cuda/attention/ladder"
  "cuda/scan $core $ops ops/gemm ops/scan $cuda cuda/attention cuda/scan"
)
for room in $cuda; do rooms+=("$room $core $ops ops/gemm $engines $cuda"); done
failed=0 includes=0
bad() { printf '%s\n' "$*"; failed=1; }

for folder in {core,ops,autograd,parallel,layers,cuda}/ {core,ops,parallel,layers,cuda}/*/; do
  [[ $folder != core/cmake/ ]] || continue
  grep -qE "^${folder%/} " <(printf '%s\n' "${rooms[@]}") || bad "$folder is no room of tests/house/layering.sh"
done

for line in "${rooms[@]}"; do
  read -r -d '' room allowed <<<"$line" || true
  for file in "$room"/*.{h,cpp,cu,cuh,inc}; do
    while IFS=: read -r line header; do
      includes=$((includes + 1))
      where=$file:$line
      case $header in
        '"'*) bad "$where: $header — headers of the project are spelt <sluice/room/name.h>" ;;
        '<sluice/'*)
          path=${header#<sluice/} path=${path%>}
          ok=0
          for to in $allowed; do
            if [[ $path == "$to" || ${path%/*} == "$to" ]]; then ok=1; fi
          done
          ((ok)) || bad "$where: $room may not include $header (only: $allowed)"
          [[ -f $path ]] || bad "$where: no such file: $header"
          ;;
        '<'*)
          # The library's headers are made of standard headers, which have no folder and no extension.
          [[ $file == cuda/* || $file != *.h || ! $header =~ [./] ]] ||
            bad "$where: $header in a public header; only standard headers may be there"
          ;;
      esac
    done < <(awk 'match($0, /^[ \t]*#[ \t]*include[ \t]*[<"][^>"]*[>"]/) {
      $0 = substr($0, 1, RLENGTH); sub(/^[^<"]*/, ""); print FNR ":" $0 }' "$file")
  done
done

# A dependency appears in as few files as possible: nlohmann-json and zlib in one, BLAS and TBB in a few .cpp.
for header in nlohmann/ zlib.h; do
  files=$(grep -rlE "#[[:space:]]*include[[:space:]]*<$header" core ops autograd parallel layers | wc -l)
  ((files <= 1)) || bad "<$header is included by $files files; one is enough"
done
((includes > 100)) || bad "read only $includes #include lines: this test is broken"

((failed)) || echo "$includes includes, all as the rooms allow"
exit "$failed"
