#!/usr/bin/env bash
# Builds and runs the consumer in one of three ways. Called by ctest:
#   install_test.sh find_package|pkg_config|add_subdirectory SOURCE BUILD COMPILER FOLDER
set -euo pipefail

way=$1 source=$2 build=$3 compiler=$4 work=$5
consumer=$source/tests/install/consumer
die() { printf 'install test: %s\n' "$*" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work"
cmake=(cmake -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug)
if command -v ninja >/dev/null; then cmake+=(-G Ninja); fi

# Installs and then moves what was installed: nothing in it may remember where it was put.
stage() {
  cmake --install "$build" --prefix "$work/staged" >"$work/install.log" || { cat "$work/install.log"; die 'cmake --install failed'; }
  mkdir "$work/elsewhere"
  mv "$work/staged" "$work/elsewhere/prefix"
  prefix=$work/elsewhere/prefix
  [[ -f $prefix/include/sluice/sluice.h ]] || die 'no include/sluice/sluice.h'
  if find "$prefix/include" -type f ! -name '*.h' | grep .; then die 'include/ holds other files than headers'; fi
  if find "$prefix/include" -type d -empty | grep .; then die 'include/ holds empty folders'; fi
  # The build folder, the source folder and the place of the first installation must not appear in it.
  # Where a path begins: a checkout in /sluice is in no <sluice/…>.
  local folder
  for folder in "$source" "$build" "$work/staged"; do
    if grep -rIP "(?<![a-z0-9.})])\\Q$folder\\E(?![\\w.-])" "$prefix"; then die "these lines name $folder"; fi
  done
  local library name
  for library in "$prefix"/lib*/libsluice*.so.0 "$prefix"/lib/*/libsluice*.so.0; do
    [[ -e $library ]] || continue
    libraries=${library%/*} name=${library##*/}
    readelf -d "$library" >"$work/dynamic"
    grep -qF "[$name]" "$work/dynamic" || die "the soname is not $name"
    if grep -E 'RPATH|RUNPATH' "$work/dynamic"; then die 'the installed library has a run path'; fi
  done
}

case $way in
  find_package)
    stage
    "${cmake[@]}" -S "$consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix"
    cmake --build "$work/build"
    "$work/build/consumer"
    "$work/build/consumer_ranks"
    # The installed examples are a project of their own.
    cp -r "$prefix/share/sluice/examples" "$work/examples"
    "${cmake[@]}" -S "$work/examples" -B "$work/examples_build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
    cmake --build "$work/examples_build" --target 01_tensors
    "$work/examples_build/01_tensors" | grep -F 'row means are now'
    if command -v mpirun >/dev/null && ldd "$work/build/consumer_ranks" | grep -q libmpi; then
      bash "$source/examples/mpirun.sh" 2 "$work/build/consumer_ranks" | grep -x '2 ranks, sum 3'
    fi
    ;;
  pkg_config)
    command -v pkg-config >/dev/null || die 'no pkg-config (tests/install_deps.sh --tests installs it)'
    stage
    export PKG_CONFIG_PATH=$libraries/pkgconfig
    [[ $(pkg-config --modversion sluice) == 0.2.0 ]] || die 'wrong version'
    # Flags are words.
    # shellcheck disable=SC2046
    "$compiler" -std=c++20 "$consumer/main.cpp" -o "$work/consumer" $(pkg-config --cflags --libs sluice)
    LD_LIBRARY_PATH=$libraries "$work/consumer"
    # A program without libstdc++, so that this, too, is opened while the program runs.
    "$compiler" -std=c++20 "$consumer/opens.cpp" -o "$work/opens" -Wl,--as-needed -ldl
    if readelf -d "$work/opens" | grep -F 'libstdc++'; then die 'the program loads libstdc++ when it starts'; fi
    LD_LIBRARY_PATH=$libraries "$work/opens" libstdc++.so.6 libsluice.so.0 libsluice_parallel.so.0
    ;;
  add_subdirectory)
    # Compiling the library once more would cost minutes. So: configure everything, compile the consumer and
    # one source file of the library as this project would, and link against the library that is here.
    # The machine seems to have a CUDA toolkit, whose kernels nobody asked for.
    printf '#!/bin/sh\necho "release 12.8"\n' >"$work/nvcc"
    chmod +x "$work/nvcc"
    "${cmake[@]}" -S "$consumer" -B "$work/build" -DSLUICE_FOLDER="$source" -DSLUICE_NVCC="$work/nvcc"
    if grep -rlF --include=build.ninja --include=build.make "$work/nvcc" "$work/build"; then
      die 'a program gets CUDA kernels unasked'
    fi
    # For another machine nothing is compiled for this one.
    "${cmake[@]}" -S "$consumer" -B "$work/cross" -DSLUICE_FOLDER="$source" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
      -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$(uname -m)"
    grep -q core/shape.cpp "$work/cross/compile_commands.json" || die 'no compile_commands.json'
    if grep -m1 -e '=native' "$work/cross/compile_commands.json"; then die 'compiled for this machine'; fi
    cd "$work/build"
    mine=CMakeFiles/consumer.dir/main.cpp.o
    theirs=sluice/CMakeFiles/sluice_o3.dir/core/shape.cpp.o
    if [[ -f build.ninja ]]; then
      ninja "$mine" "$theirs"
    else
      make -f CMakeFiles/consumer.dir/build.make "$mine"
      make -f sluice/CMakeFiles/sluice_o3.dir/build.make "$theirs"
    fi
    "$compiler" "$mine" -L"$build" -lsluice -Wl,-rpath,"$build" -o consumer
    ./consumer
    ;;
  *) die "unknown way '$way'" ;;
esac
