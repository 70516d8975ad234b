#!/usr/bin/env python3
"""Two builds of sluice_bench beside each other: how many times faster the new one is, row by row.

    python3 tests/bench/pairs.py OLD/sluice_bench NEW/sluice_bench [--quick] [--only REGEX] [--seconds 0.7] [--rounds 5]

Both programs keep the workload ready and take turns, round by round, each first in every other round. A ratio is the
old time over the new one of the same round; the table shows their medians. Exit status 1 if a row is below --least or
the geometric mean of all rows below --mean.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import time

from compare import QUICK, Server, amount, geometric


def pair(servers, name, seconds, rounds):
    """Medians of the old time, the new time, and old/new of a round; or why a program could not."""
    times = {"old": [], "new": []}
    for side, server in servers.items():
        answer = server.ask("run", name, 0)
        if "failed" in answer:
            return f"{side}: {answer['failed']}"
    for i in range(rounds):
        for side in times if i % 2 == 0 else reversed(times):
            time.sleep(0.02)  # the other's threads may still spin
            times[side].append(servers[side].ask("run", name, seconds / rounds)["seconds"])
    ratios = [old / new for old, new in zip(times["old"], times["new"])]
    return [statistics.median(values) for values in (times["old"], times["new"], ratios)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", default="", help="regular expression for names")
    parser.add_argument("--quick", action="store_true", help="the rows of README.md's first table")
    parser.add_argument("--seconds", type=float, default=0.7, help="for each program and row")
    parser.add_argument("--rounds", type=int, default=7, help="turns that the programs take")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--least", type=float, default=0.96, help="of one row")
    parser.add_argument("--mean", type=float, default=0.98, help="geometric, of all rows")
    args = parser.parse_args()
    programs = {"old": args.old, "new": args.new}
    servers = {side: Server([bench, "--serve", "--threads", str(args.threads)]) for side, bench in programs.items()}
    lists = {side: subprocess.run([bench, "--list"], capture_output=True, text=True, check=True).stdout.split()
             for side, bench in programs.items()}
    names = [n for n in lists["old"] if n in lists["new"] and not n.startswith("memory/") and re.search(args.only, n)
             and (not args.quick or re.search(QUICK, n))]
    ratios, failed = [], False
    print("| row | old | new | old / new |\n|---|---|---|---|")
    for name in names:
        row = pair(servers, name, args.seconds, args.rounds)
        if isinstance(row, str):
            print(f"| {name} | {row} |")
            failed = True
            continue
        old, new, ratio = row
        ratios.append(ratio)
        print(f"| {name} | {amount({'seconds': old})} | {amount({'seconds': new})} | {ratio:.3f} |", flush=True)
    for server in servers.values():
        server.end()
    print(f"\n{len(ratios)} rows: geometric mean {geometric(ratios):.3f}, least {min(ratios, default=0):.3f}")
    return failed or not ratios or min(ratios) < args.least or geometric(ratios) < args.mean


if __name__ == "__main__":
    sys.exit(main())
