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

from tests.fault.harness.plan import Deck
from tests.fault.harness.replica_faults import DISK_FAULTS, FAULTS
from tests.fault.harness.replica_hosts import ReplicaHosts, member_disks, replica_hosts
from tests.fault.harness.replica_rounds import ReplicaCampaign, ReplicaTally
from tests.fault.harness.rounds import PromiseBroken

from .rounds import done, ended, table

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
    """A run of campaigns, each with a replica set of its own below ``folder``."""

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
            left = rounds - done(self.tallies)
            if left <= 0 or self.failed >= FAILED_MAX:
                return
            self._campaign(number, [deck.draw() for _ in range(min(ROUNDS_A_CAMPAIGN, left))])

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
        print(
            f"{time.monotonic() - self._began:5.0f} s  {done(self.tallies)} rounds, {self.failed} failed; the last "
            f"one: {fault}, pause {self.tallies[fault].pauses_s[-1]:.1f} s",
            flush=True,
        )


def run(rounds: int, seed: int) -> int:
    """Run ``rounds`` of a replica set; print progress and the table, and return the exit code. Raises ``NotHere``."""
    logging.getLogger("flintmq").setLevel(logging.ERROR)  # clients warn of each connection that they lose
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # hosts and servers must not stay
    folder = Path(tempfile.mkdtemp(prefix="flintmq-replica-rounds-"))
    with replica_hosts(folder) as hosts:
        outcome = ReplicaRun(hosts, folder, seed)
        try:
            outcome.go(rounds)
        finally:  # after Ctrl-C too
            more = {
                "pause, median s": lambda tally: f"{statistics.median(tally.pauses_s):.1f}",
                "worst s": lambda tally: f"{max(tally.pauses_s):.1f}",
                "state": lambda tally: f"{tally.failed} failed" if tally.failed else "sound",
            }
            table(outcome.tallies, ReplicaTally(), "fault", COLUMNS, more)
    return int(ended(outcome.failed, folder))
