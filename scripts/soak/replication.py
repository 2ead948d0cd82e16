"""Command line of ``scripts/soak/run replication``: many seeds of the simulated replica set."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence

from tests.simulation.chaos import run_seed
from tests.simulation.disk import Violation


def main(arguments: Sequence[str]) -> int:
    """Run the seeds; return 0 if no promise was broken, else 1."""
    parser = argparse.ArgumentParser(
        prog="./scripts/soak/run replication",
        description="Lives of simulated replica sets, each a minute of faults and the recovery from them, in simulated "
        "time. Prints each seed that breaks a promise. Exits with 0 or 1. docs/replication.md has the promises.",
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="number of lives (default: 10,000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="(default: 2)")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    broken = acknowledged = leaderships = 0
    begun_at = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, (failure, confirmations, leaders) in enumerate(pool.imap_unordered(_live, seeds, chunksize=20), 1):
            acknowledged += confirmations
            leaderships += leaders
            if failure:
                broken += 1
                print(failure, flush=True)
            if done % 10_000 == 0 or done == len(seeds):
                print(f"{done:,} lives, {time.monotonic() - begun_at:.0f} s, {broken} broken", flush=True)
    print(f"{leaderships:,} leaderships, {acknowledged:,} confirmations")
    return 1 if broken else 0


def _live(seed: int) -> tuple[str, int, int]:
    """Return the broken promise of a seed, or how often its set confirmed something and how many leaderships it had."""
    try:
        judge = run_seed(seed).judge
    except Violation as violation:
        return str(violation), 0, 0
    return "", judge.acknowledged, judge.leaderships
