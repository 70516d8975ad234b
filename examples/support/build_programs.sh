# Sourced by report.sh and claims.sh. `build_programs TARGET…` makes a Release of them in build/release; what that says
# goes to $out/build.log. Reads root, out, install (1: with what the build needs) and say() of the script.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
build_programs() {
  local generator=()
  if ((install)); then bash "$root/tests/install_deps.sh"; fi
  if [[ ! -f $root/build/release/CMakeCache.txt ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  say 'building a Release in build/release'
  { cmake -S "$root" -B "$root/build/release" ${generator[@]+"${generator[@]}"} -DCMAKE_BUILD_TYPE=Release \
    -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_EXAMPLES=ON &&
    cmake --build "$root/build/release" --parallel "$cores" --target "$@"; } >"$out/build.log" 2>&1 ||
    { tail -n 40 "$out/build.log" >&2; exit 1; }
}
