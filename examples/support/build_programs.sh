# Sourced by report.sh and claims.sh. `read_option "$@"` reads the next of the options that both have into out, only,
# programs, install or smoke, and sets `taken` to the number of words it read: 0 if the option is the script's own.
# `build_programs TARGET…` makes a Release of the targets in build/release; what that says goes to $out/build.log. Both
# functions read root (the repository), install (1: with what the build needs), out, and usage(), say() and bad() of the
# script.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
only='' programs='' install=1 smoke=0
read_option() {
  case $1 in
    --out | --only | --programs)
      if [[ ! ${2-} || $2 == --* ]]; then bad "$1 needs a value"; fi
      printf -v "${1#--}" %s "$2"
      taken=2 ;;
    --no-install) install=0 taken=1 ;;
    --smoke) smoke=1 taken=1 ;;
    -h | --help) usage; exit 0 ;;
    *) taken=0 ;;
  esac
}
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
