"""``scripts/soak --rounds``: campaigns of the fault harness (``tests/fault/harness``), and the table at the end."""

from __future__ import annotations

import asyncio
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.fault.harness.brokers import PreparedParent
from tests.fault.harness.points import POINTS
from tests.fault.harness.rounds import Campaign, RoundFailed, Tally

ROUNDS_A_CAMPAIGN = 12
"""Then a new store: what has to be read after each round stays small."""
KINDS = ("kill", "point", "power", "error")
SHOWN_EVERY_S = 10.0


def run(rounds: int, seed: int) -> int:
    """Run them, print progress and the table; the exit code."""
    source = random.Random(seed)
    tallies: dict[str, Tally] = {}
    hit: set[str] = set()
    began = shown = time.monotonic()
    failed = 0
    folder = Path(tempfile.mkdtemp(prefix="flintmq-rounds-"))
    with PreparedParent(folder) as prepared:
        for number, first in enumerate(range(0, rounds, ROUNDS_A_CAMPAIGN)):
            kinds = [source.choice(KINDS) for _ in range(min(ROUNDS_A_CAMPAIGN, rounds - first))]
            campaign_folder = folder / f"campaign-{number}"
            campaign_folder.mkdir()
            campaign = Campaign(
                prepared,
                campaign_folder,
                f"{seed} {number}",
                sync=source.random() < 0.6,
                retention=source.random() < 0.3,
            )
            try:
                asyncio.run(campaign.run(kinds, tallies, lambda: None))
            except RoundFailed as failure:
                failed += 1
                print(f"FAILED: --seed {seed}, campaign {number} ({', '.join(kinds)}): {failure}\n"
                      f"  its store is kept: {campaign.store}", file=sys.stderr, flush=True)  # fmt: skip
            else:
                shutil.rmtree(campaign_folder)
            hit |= campaign.hit
            if time.monotonic() >= shown + SHOWN_EVERY_S:
                shown = time.monotonic()
                done = sum(tally.rounds for tally in tallies.values())
                acknowledged = sum(tally.acknowledged for tally in tallies.values())
                print(f"{shown - began:5.0f} s  {done} rounds, {acknowledged:,} messages acknowledged", flush=True)
    print(table(tallies, seed, time.monotonic() - began))
    missed = sorted(set(POINTS) - hit)
    print(f"\n{len(hit)} of {len(POINTS)} named points reached" + (f"; not: {', '.join(missed)}" if missed else ""))
    if not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


def table(tallies: dict[str, Tally], seed: int, seconds: float) -> str:
    """The result as Markdown."""
    lines = [
        "| round | rounds | acknowledged | lost | seen, then vanished | wrongly served | duplicates | out of order "
        "| unflushed, gone with the power (async) | s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    total = Tally()
    for kind in (*sorted(tallies), "all"):
        tally = tallies.get(kind, total)
        if kind != "all":
            for name in vars(tally):
                setattr(total, name, getattr(total, name) + getattr(tally, name))
        lines.append(
            f"| {kind} | {tally.rounds:,} | {tally.acknowledged:,} | {tally.lost} | {tally.vanished} | {tally.wrong} "
            f"| {tally.duplicates} | {tally.disorder} | {tally.tail:,} | {tally.seconds:,.0f} |"
        )
    machine = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    lines.append(f"\n{machine}, {datetime.now(UTC):%Y-%m-%d}, seed {seed}, {seconds:,.0f} s in all")
    return "\n".join(lines)
