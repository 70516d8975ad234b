#!/usr/bin/env bash
# Plants faults in the library and asks which of them the tests catch. Works from any folder; all it makes lies under build/.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/mutate.sh [--seed S] [--count N] [--only KIND] [--jobs N] [--stage STAGE] FILE|FOLDER[:COUNT] …
  --seed S       which faults are drawn (default 1); the kinds in turn
  --count N      how many (default 100); a folder may have a count of its own, core ops cuda:40
  --only KIND    compare, condition, logic, term, sign, swap, index, tail, constant, drop or stale
  --jobs N       compilers and tests at a time (default: number of cores)
  --build DIR    where copy, library and results go (default: build/mutants)
  --tests DIR    an ordinary build of this tree, whose tests are run (default: build/release, which tests/run.sh makes;
                 for faults in cuda/ with --cuda)
  --stage STAGE  all (default); list: print the faults; cpu, cuda: only those outside cuda/, inside it
Copies the tree, plants all faults behind one switch, builds the library once, and runs each fault with the tests that reach
it, until one fails. Prints what survived as a difference. Called again it tries only survivors, and what changed since.
TEXT
}
for word in "$@"; do
  if [[ $word == -h || $word == --help ]]; then usage; exit 0; fi
done
if (($# == 0)); then usage >&2; exit 2; fi
exec python3 "$(dirname "${BASH_SOURCE[0]}")/mutate.py" "$@"
