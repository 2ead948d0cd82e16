"""``scripts/soak/run --replica-rounds``: rounds of faults of a replica set on hosts of its own, and a table."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fault.harness.mounts import NotHere
from tests.fault.harness.plan import Deck
from tests.fault.harness.replica_faults import DISK_FAULTS, FAULTS
from tests.fault.harness.replica_hosts import ReplicaHosts, member_disks, replica_hosts
from tests.fault.harness.replica_rounds import ReplicaCampaign, ReplicaTally
from tests.fault.harness.rounds import PromiseBroken

ROUNDS_A_CAMPAIGN = 10
"""Rounds before a new set begins: keeps what each round has to read small."""
FAILED_MAX = 10
COLUMNS = {
    "rounds": "rounds",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "duplicates": "doubled",
    "vanished": "vanished",
    "disorder": "out of order",
    "wrong": "wrongly served",
}


class ReplicaRun:
    """A run of campaigns. A campaign ends at its first failure and keeps its stores, in ``folder``."""

    def __init__(self, hosts: ReplicaHosts, folder: Path, seed: int) -> None:
        self.tallies: dict[str, ReplicaTally] = {}
        self.failed = 0
        self._hosts = hosts
        self._folder = folder
        self._seed = seed
        self._began = time.monotonic()

    def go(self, rounds: int) -> None:
        """Run campaigns until ``rounds`` are done or too many have failed."""
        deck = Deck(random.Random(self._seed), (*FAULTS, *DISK_FAULTS))
        for number in itertools.count():
            done = self._done()
            if done >= rounds or self.failed >= FAILED_MAX:
                return
            self._campaign(number, [deck.draw() for _ in range(min(ROUNDS_A_CAMPAIGN, rounds - done))])

    def _done(self) -> int:
        return sum(tally.rounds for tally in self.tallies.values())

    def _campaign(self, number: int, faults: list[str]) -> None:
        folder = self._folder / f"set-{number}"
        folder.mkdir()
        with member_disks(folder) as disks:
            campaign = ReplicaCampaign(self._hosts, folder, f"{self._seed} {number}", disks)
            try:
                asyncio.run(campaign.run(faults, self.tallies, self._show))
            except Exception as failure:  # noqa: BLE001 - any error is reported and counted; the run continues
                self.failed += 1
                if not isinstance(failure, PromiseBroken) or failure.__cause__ is not None:
                    traceback.print_exc()
                print(f"FAILED: campaign {number}: {failure}\n  its stores and logs: {folder}", file=sys.stderr)
                for member in disks:
                    shutil.copytree(campaign.replicas.store(member), folder / member, dirs_exist_ok=True)
                return
        shutil.rmtree(folder)

    def _show(self, fault: str) -> None:
        pause_s = self.tallies[fault].pauses_s[-1]
        print(
            f"{time.monotonic() - self._began:5.0f} s  {self._done()} rounds, {self.failed} failed; the last one: "
            f"{fault}, pause {pause_s:.1f} s",
            flush=True,
        )


def run(rounds: int, seed: int) -> int:
    """Run ``rounds``; print progress and the table, and return the exit code."""
    logging.getLogger("flintmq").setLevel(logging.ERROR)  # clients warn of each connection that they lose
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # hosts and servers must not stay
    folder = Path(tempfile.mkdtemp(prefix="flintmq-replica-rounds-"))
    try:
        with replica_hosts(folder) as hosts:
            outcome = ReplicaRun(hosts, folder, seed)
            try:
                outcome.go(rounds)
            finally:  # after Ctrl-C too
                print(table(outcome.tallies))
    except NotHere as refusal:
        print(f"this machine cannot run it: {refusal}", file=sys.stderr)
        return 1
    if outcome.failed:
        print(f"FAILED: {outcome.failed} campaigns; their stores are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def table(tallies: dict[str, ReplicaTally]) -> str:
    """Format the result as Markdown: a row for each fault, and one for all."""
    total = ReplicaTally()
    for tally in tallies.values():
        for name in vars(tally):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    lines = [
        f"| fault | {' | '.join(COLUMNS.values())} | pause, median s | worst s | state |",
        "|---|" + "---:|" * (len(COLUMNS) + 2) + "---|",
    ]
    for fault, tally in (*sorted(tallies.items()), ("**all**", total)):
        if not tally.rounds:
            continue
        figures = " | ".join(f"{getattr(tally, name):,}" for name in COLUMNS)
        pauses = f"{statistics.median(tally.pauses_s):.1f} | {max(tally.pauses_s):.1f}"
        state = f"{tally.failed} failed" if tally.failed else "sound"
        lines.append(f"| {fault.replace('|', chr(92) + '|')} | {figures} | {pauses} | {state} |")
    return "\n".join(lines)
