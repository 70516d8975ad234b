#!/usr/bin/env python3
"""Plants faults in the library and asks which of them the tests catch; tests/mutate.sh --help says how to call it.

All faults stand in one build of the library, made from a copy of the tree, each behind a switch: `(mutant(17) ? (a <= b) : (a < b))`,
where SLUICE_MUTANT says which one is there. The tests are those of an ordinary build, run with that library in the place of its
own. Each is run once to see which faults it reaches; then each fault is run with those that reach it, the shortest first, until
one fails, crashes or takes ten times as long as it did. A fault in a header stands where the library compiles it, not in the tests.
"""
import argparse
import collections
import concurrent.futures
import difflib
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = (".cpp", ".h", ".cu", ".cuh")
# What needs AMX, an arm64 processor or a real GPU, and the table of layers, which is there for tests.
NOT_RUN = re.compile(r"amx|neon|bfmmla|cuda/(nccl|runtime|blas)\.cu|cuda/attention/(kernels\.cu|.*wgmma)|cuda/warpgroup|layers/table")
SWITCH = "sluice/core/mutant.h"
HEADER = """#pragma once
namespace sluice::detail {
extern int mutant_chosen;
extern int* mutants_reached;
constexpr bool mutant(int k) {
  if (__builtin_is_constant_evaluated()) return false;
  if (mutants_reached) mutants_reached[k] = 1;
  return mutant_chosen == k;
}
}  // namespace sluice::detail
"""
SOURCE = """#include <sluice/core/mutant.h>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
namespace sluice::detail {
int mutant_chosen = 0;
int* mutants_reached = nullptr;
[[gnu::constructor(101)]] static void choose() {
  if (const char* k = std::getenv("SLUICE_MUTANT")) mutant_chosen = std::atoi(k);
  if (const char* path = std::getenv("SLUICE_MUTANTS_REACHED"))  // a file that all processes of a test share
    if (const int file = ::open(path, O_RDWR); file >= 0)
      mutants_reached = static_cast<int*>(::mmap(nullptr, 4 * (COUNT + 1), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
}
}  // namespace sluice::detail
"""
# For faults outside and inside of cuda/, two rounds: programs whose test cases are run one by one, with the folders of these;
# and tests of ctest that are run as a whole. The second is for what survived the first. mpi_resume waits for signals: on a busy
# machine it takes too long without a fault, too.
ROUNDS = {
    False: [
        ({"tests/sluice_tests": ("core", "ops", "autograd", "layers", "golden", "parallel")}, "$none"),
        ({"tests/layer_check/layer_check_tests": ("layer_check",)}, r"(sluice_tests_(base|avx2)|sluice_fuzz|mpi_(?!resume).*)$"),
    ],
    True: [
        ({"tests/cuda/sluice_cuda_tests": ("cuda",)}, "$none"),
        ({}, r"(sluice_tests_cuda_\w+|layer_check_tests_cuda|sluice_fuzz_cuda|mpi_ranks_3_cuda)$"),
    ],
}
LIBRARIES = {False: ["sluice", "sluice_table", "sluice_parallel"], True: ["sluice_cuda_emulated"]}

Unit = collections.namedtuple("Unit", "name program source")  # a test case, or (program "ctest") a test of ctest


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def git_files(*paths):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [n for n in names if n and (ROOT / n).is_file()]


def draw(paths, seed, count, only):
    """`count` sites, the kinds in turn, no two on one line: (file, Site) in order. `cuda:40` is a folder with a count of its own."""
    own = [p.split(":") for p in paths if ":" in p]
    if own:
        rest = [p for p in paths if ":" not in p]
        return sorted([d for p, n in own for d in draw([p], seed, int(n), only)] + (draw(rest, seed, count, only) if rest else []),
                      key=lambda d: (d[0], d[1].start))
    rng, by_kind, taken, drawn = random.Random(seed), {}, set(), []
    for file in sorted(git_files(*paths)):
        if file.endswith(SOURCES) and not NOT_RUN.search(file):
            text = (ROOT / file).read_text(encoding="utf-8")
            for site in mutants.sites_of(text):
                if text.count("\n", site.start, site.end) < 4 and (not only or site.kind == only):
                    by_kind.setdefault(site.kind, []).append((file, site, text.count("\n", 0, site.end) + 1))
    for sites in by_kind.values():
        rng.shuffle(sites)
    while len(drawn) < count and any(by_kind.values()):
        for kind in [k for k in mutants.KINDS if by_kind.get(k)]:
            file, site, last = by_kind[kind].pop()
            lines = {(file, n) for n in range(site.line, last + 1)}
            if not lines & taken and len(drawn) < count:
                taken |= lines
                drawn.append((file, site))
    return sorted(drawn, key=lambda d: (d[0], d[1].start))


def planted(text, sites):
    """The text with faults (number, site), each behind its switch."""
    for number, site in sorted(sites, key=lambda s: -s[1].start):
        text = text[:site.start] + site.planted(f"::sluice::detail::mutant({number})") + text[site.end:]
    return f"#include <{SWITCH}>\n#line 1\n{text}"


def difference(text, site):
    faulty = text[:site.start] + site.fault + text[site.end:]
    return [l for l in difflib.unified_diff(text.splitlines(), faulty.splitlines(), n=0, lineterm="") if l[0] in "+-" and l[:3] not in ("+++", "---")]


class Tree:
    """The copy with the faults, and its build."""

    def __init__(self, build, drawn, jobs, broken):
        self.folder, self.build, self.jobs, self.drawn = build / "tree", build / "build", jobs, drawn
        self.broken = broken  # faults that do not compile

    @property
    def alive(self):
        return set(range(1, len(self.drawn) + 1)) - set(self.broken)

    def write(self):
        by_file = {}
        for number in self.alive:
            file, site = self.drawn[number - 1]
            by_file.setdefault(file, []).append((number, site))
        wanted = {"core/mutant.h": HEADER.encode(), "core/mutant.cpp": SOURCE.replace("COUNT", str(len(self.drawn))).encode()}
        for file in git_files():
            data = (ROOT / file).read_bytes()
            wanted[file] = planted(data.decode(), by_file[file]).encode() if file in by_file else data
        for file, data in wanted.items():  # what stays as it is keeps its time
            path = self.folder / file
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                path.chmod((ROOT / file).stat().st_mode if (ROOT / file).exists() else 0o644)

    def compile(self, wanted, cuda):
        """Builds; drops the faults on lines that the compiler names until nothing fails."""
        self.write()
        if not (self.build / "build.ninja").exists():
            subprocess.run(["cmake", "-G", "Ninja", "-S", self.folder, "-B", self.build, "-DCMAKE_BUILD_TYPE=Release",
                            "-DSLUICE_BUILD_EXAMPLES=OFF"], check=True, capture_output=True)
        targets = [self.includers()] * (not cuda) + [wanted]
        for _ in range(20):
            run = subprocess.run(["ninja", "-C", self.build, f"-j{self.jobs}", "-k0", *targets[0]], capture_output=True, text=True)
            if run.returncode == 0:
                targets = targets[1:]
                if not targets:
                    return
                continue
            for what in ("error", r"(?:required from|note|\s+required)"):  # the fault's line, or of what led to it
                named = {(os.path.basename(f), int(n)) for f, n in re.findall(rf"([\w./-]+):(\d+):\d+: +{what}", run.stdout)}
                bad = {k for k in self.alive if any((os.path.basename(self.drawn[k - 1][0]), n) in named for n in self.lines(k))}
                if bad:
                    break
            else:  # a declaration that is gone is missed below: the last fault above each error of its file
                errors = {(os.path.basename(f), int(n)) for f, n in re.findall(r"([\w./-]+):(\d+):\d+: +error", run.stdout)}
                above = lambda f, n: [k for k in self.alive if os.path.basename(self.drawn[k - 1][0]) == f and self.drawn[k - 1][1].line < n]
                bad = {max(ks, key=lambda k: self.drawn[k - 1][1].line) for ks in (above(f, n) for f, n in errors) if ks}
            if not bad:
                sys.exit("mutate: the build failed\n" + run.stdout[-4000:])
            say(len(bad), "faults do not compile and are dropped")
            self.broken += sorted(bad)
            self.write()
        sys.exit("mutate: the build still fails")

    def includers(self):
        """Objects of the library, one for each header with a fault: what they show need not be compiled everywhere."""
        sources = [f for f in git_files("core", "ops", "autograd", "layers", "parallel") if f.endswith(".cpp") and not re.search("parallel/mpi|layers/table", f)]
        found = []
        for header in {self.drawn[k - 1][0] for k in self.alive if self.drawn[k - 1][0].endswith(".h")}:
            own = [f for f in sources if f == header[:-2] + ".cpp"]
            found += (own or [f for f in sources if f"<sluice/{header}>" in (ROOT / f).read_text(encoding="utf-8")])[:1]
        return [f"{ROOT / f}^" for f in sorted(set(found))]  # ninja: what this source becomes

    def lines(self, number):
        file, site = self.drawn[number - 1]
        text = (ROOT / file).read_text(encoding="utf-8")
        return range(site.line, text.count("\n", 0, site.end) + 2)


def run(command, env, cwd, limit):
    """(seconds, output, how it ended): None for success. The whole process group ends with it."""
    begun = time.time()
    memory = lambda: (resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30)), resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **env}, start_new_session=True, preexec_fn=memory,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, ended = process.communicate(timeout=limit)[0], None
        if process.returncode:
            ended = f"status {process.returncode}" if process.returncode > 0 else signal.Signals(-process.returncode).name
    except subprocess.TimeoutExpired:
        output, ended = b"", "too long"
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return time.time() - begun, output.decode(errors="replace"), ended


class Suite:
    def __init__(self, tree, built, programs, whole, work):
        self.tree, self.built, self.work, self.units = tree, built, work, []
        work.mkdir(parents=True, exist_ok=True)
        for program, folders in programs.items():
            for file in git_files(*(f"tests/{f}" for f in folders)):
                names = re.findall(r'^TEST_CASE\("((?:[^"\\]|\\.)*)"', (ROOT / file).read_text(encoding="utf-8"), re.M) if file.endswith(".cpp") else []
                self.units += [Unit(n.replace('\\"', '"'), program, file) for n in names]
        tests = json.loads(subprocess.run(["ctest", "--show-only=json-v1"], cwd=built, capture_output=True, text=True, check=True).stdout)
        self.units += [Unit(t["name"], "ctest", "tests/CMakeLists.txt") for t in tests["tests"] if re.match(whole, t["name"])]

    def start(self, units, env, limit, worker):
        """Runs test cases of one program, or one test of ctest."""
        folder = self.work / str(worker)
        folder.mkdir(parents=True, exist_ok=True)
        if units[0].program == "ctest":
            command = ["ctest", "--test-dir", str(self.built), "-R", f"^{units[0].name}$", "--output-on-failure"]
        else:
            quoted = lambda name: re.sub(r'([\\,\[\]"])', r"\\\1", name)  # else a comma ends it
            (folder / "names").write_text("".join(f"{quoted(u.name)}\n" for u in units))
            command = [str(self.built / units[0].program), "--abort", "--input-file", str(folder / "names")]
        return run(command, {**env, "LD_LIBRARY_PATH": str(self.tree.build)}, folder, limit)

    def reach(self, known):
        """{unit: (seconds, faults reached)}; what failed without a fault, or is no test of this machine, is left out."""
        def one(job):
            index, unit = job
            source = ROOT / unit.source
            key = f"{unit.program} {unit.name} {hashlib.sha1(source.read_bytes()).hexdigest()}"
            if key not in known:
                path = self.work / f"reached{index}"
                path.write_bytes(bytes(4 * (len(self.tree.drawn) + 1)))
                seconds, output, ended = self.start([unit], {"SLUICE_MUTANTS_REACHED": str(path)}, 1500, f"map{index}")
                data = path.read_bytes()
                path.unlink()
                if ended:
                    say(f"fails without a fault, or was skipped: {unit.name} ({ended})")
                known[key] = [seconds, [] if ended else [k for k in range(1, len(self.tree.drawn) + 1) if any(data[4 * k:4 * k + 4])]]
            return unit, known[key]
        with concurrent.futures.ThreadPoolExecutor(self.tree.jobs) as pool:
            return dict(pool.map(one, enumerate(self.units)))

    def try_fault(self, number, reached, worker):
        """The test that catches it, or None; and the number of tests that ran."""
        file = self.tree.drawn[number - 1][0]
        stem = pathlib.Path(file).stem
        units = [u for u, (_, faults) in reached.items() if number in faults]
        breadth = lambda u: reached[u][0] * (0.2 if stem in u.source else 1) * (1 + len(reached[u][1]) / 100)
        units.sort(key=breadth)
        batch_seconds, tried = 1.0, 0
        while units:
            batch, rest, total = [], [], 0.0
            for u in units:
                fits = not batch or u.program == batch[0].program != "ctest" and total + reached[u][0] <= batch_seconds
                (batch if fits else rest).append(u)
                total += reached[u][0] if fits else 0
            _, output, ended = self.start(batch, {"SLUICE_MUTANT": str(number)}, 5 + 10 * total, worker)
            tried += len(batch)
            if ended:
                names = [u.name for u in batch if u.name[:60] in output] if len(batch) > 1 else [batch[0].name]
                failed = re.search(r"^-{20,}\n(.+?)\n-{20,}", output, re.M | re.S)
                return f"{ended}: {(failed.group(1).splitlines()[0] if failed else (names or [batch[0].name])[-1]).strip()}", tried
            units, batch_seconds = rest, 2 * batch_seconds
        return None, tried


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", choices=mutants.KINDS)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/mutants")
    parser.add_argument("--tests", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--stage", choices=("all", "list", "cpu", "cuda"), default="all")
    parser.add_argument("paths", nargs="+")
    args = parser.parse_args()
    drawn = draw(args.paths, args.seed, args.count, args.only)
    if not drawn:
        sys.exit("mutate: nothing to plant in " + " ".join(args.paths))
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in drawn}
    if args.stage == "list":
        for file, site in drawn:
            print(f"{file}:{site.line}: {site.kind}", *difference(texts[file], site), sep="\n  ")
        return
    if not (args.tests / "tests/sluice_tests").exists():
        sys.exit(f"mutate: {args.tests} has no tests/sluice_tests; tests/run.sh makes it, or say --tests")
    build = args.build.resolve()
    build.mkdir(parents=True, exist_ok=True)
    # What earlier runs found stays true of a fault whose file is the same, and of a test whose file is.
    state_file = build / "state.json"
    state = json.loads(state_file.read_text()) if state_file.exists() else {"caught": {}, "reached": {}, "broken": {}}
    keys = [hashlib.sha1(f"{f} {s.start} {s.planted('m')} {texts[f]}".encode()).hexdigest() for f, s in drawn]
    layout = hashlib.sha1(" ".join(keys).encode()).hexdigest()
    known = state["reached"].setdefault(layout, {})
    tree = Tree(build, drawn, args.jobs, state["broken"].setdefault(layout, []))
    lock = threading.Lock()

    def save():
        with lock:
            state_file.write_text(json.dumps(state))

    survived = {}
    for cuda in (False, True):
        mine = [k for k in range(1, len(drawn) + 1) if drawn[k - 1][0].startswith("cuda/") == cuda]
        if not mine or args.stage not in ("all", "cuda" if cuda else "cpu"):
            continue
        survived.update((k, 0) for k in mine if keys[k - 1] not in state["caught"])
        say("building", *LIBRARIES[cuda])
        tree.compile(LIBRARIES[cuda], cuda)
        save()
        for programs, whole in ROUNDS[cuda]:
            suite = Suite(tree, args.tests.resolve(), programs, whole, build / "run")
            say("looking which of", len(suite.units), "tests reach which fault")
            reached = suite.reach(known)
            save()
            left = sorted(set(survived) & set(mine) & tree.alive)
            say("trying", len(left), "faults")

            def attempt(number):
                begun, (by, tried) = time.time(), suite.try_fault(number, reached, f"fault{number}")
                file, site = drawn[number - 1]
                say(f"{number} {file}:{site.line} {site.kind}: {by or 'SURVIVED'} ({tried} tests, {time.time() - begun:.1f} s)")
                survived[number] += tried
                if by:
                    state["caught"][keys[number - 1]] = by
                    del survived[number]
                    save()

            with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
                list(pool.map(attempt, left))

    survived = sorted(k for k in survived.items() if k[0] in tree.alive)
    done = [k for k in sorted(tree.alive) if keys[k - 1] in state["caught"]]
    for number, tried in survived:
        file, site = drawn[number - 1]
        print(f"survived {tried} tests: {file}:{site.line}: {site.kind}", *difference(texts[file], site), sep="\n  ")
    print(f"{len(done) + len(survived)} faults: {len(done)} caught, {len(survived)} survived; {len(drawn) - len(tree.alive)} did not compile")
    for kind, what in mutants.KINDS.items():
        of = [k for k in done if drawn[k - 1][1].kind == kind]
        left = [k for k, _ in survived if drawn[k - 1][1].kind == kind]
        if of or left:
            print(f"  {kind:10} {len(of):4} of {len(of) + len(left):4}  {what}")


if __name__ == "__main__":
    main()
