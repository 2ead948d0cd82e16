"""``scripts/soak/run --rounds``: runs campaigns of the fault harness (``tests/fault/harness``) and prints a table.

A campaign is some rounds on one store; it ends at its first failure and keeps its store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from tests.fault.harness.brokers import PreparedParent
from tests.fault.harness.plan import ALL_POINTS_AFTER_ROUNDS, Planned, campaigns, disk_campaigns
from tests.fault.harness.points import POINTS
from tests.fault.harness.real_disks import on_a_real_disk
from tests.fault.harness.rounds import Campaign, RoundFailed
from tests.fault.harness.tally import Tally

SHOWN_EVERY_S = 10.0
FAILED_MAX = 25
"""Number of failed campaigns after which the run ends."""
COLUMNS = {
    "rounds": "rounds",
    "failed": "failed",
    "faults": "faults",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "vanished": "seen, then vanished",
    "wrong": "wrongly served",
    "duplicates": "stored twice",
    "disorder": "out of order",
    "resent": "unacknowledged, resent, stored once",
    "reported": "damaged, and reported",
    "unchecked": "changed in bytes without a checksum",
    "tail": "unflushed, lost with the power (async)",
}

T = TypeVar("T", bound=Tally)
Opened = Callable[[PreparedParent, Path, Planned], AbstractContextManager[Campaign]]


@contextmanager
def on_this_disk(prepared: PreparedParent, folder: Path, planned: Planned) -> Iterator[Campaign]:
    """Yield a campaign whose store is in ``folder``."""
    yield Campaign(
        prepared, folder, planned.seed, sync=planned.sync, retention=planned.retention, checksums=planned.checksums
    )


def done(tallies: Mapping[str, Tally]) -> int:
    """Return the number of rounds until now, including failed ones."""
    return sum(tally.rounds for tally in tallies.values())


class Run:
    """A run of campaigns, one after the other. ``opened`` creates a campaign, whose store is in ``folder``."""

    def __init__(self, seed: int, folder: Path, opened: Opened, command: str) -> None:
        self.tallies: dict[str, Tally] = {}
        self.hit: set[str] = set()
        self.failed: list[int] = []
        self._seed = seed
        self._folder = folder
        self._opened = opened
        self._command = command
        self._began = self._shown = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def go(self, prepared: PreparedParent, planned: Iterable[Planned], rounds: int) -> None:
        """Run campaigns until ``rounds`` are done or too many have failed."""
        for each in planned:
            if done(self.tallies) >= rounds or len(self.failed) >= FAILED_MAX:
                return
            self._campaign(prepared, each, each.rounds[: rounds - done(self.tallies)])

    def _campaign(self, prepared: PreparedParent, planned: Planned, rounds: list[str]) -> None:
        folder = self._folder / f"campaign-{planned.number}"
        folder.mkdir()
        with self._opened(prepared, folder, planned) as campaign:
            try:
                asyncio.run(campaign.run(rounds, self.tallies, self._show))
            except Exception as failure:  # noqa: BLE001 - any error is reported and counted; the run continues
                self.failed.append(planned.number)
                if not isinstance(failure, RoundFailed):
                    traceback.print_exc()
                print(
                    f"FAILED: campaign {planned.number}: {type(failure).__name__}: {failure}\n"
                    f"  its store is kept: {campaign.keep(folder)}\n"
                    f"  repeat it with: {self._command} --seed {self._seed} --campaign {planned.number}",
                    file=sys.stderr,
                    flush=True,
                )
        if planned.number not in self.failed:
            shutil.rmtree(folder)
        self.hit |= campaign.hit

    def _show(self) -> None:
        if time.monotonic() >= self._shown + SHOWN_EVERY_S:
            self._shown = time.monotonic()
            acknowledged = sum(tally.acknowledged for tally in self.tallies.values())
            print(
                f"{self.seconds:5.0f} s  {done(self.tallies)} rounds, {acknowledged:,} messages acknowledged, "
                f"{len(self.failed)} campaigns failed",
                flush=True,
            )


def run(rounds: int, seed: int, campaign: int | None, *, disks: bool) -> int:
    """Run ``rounds``, or only those of one campaign; print progress and the table, and return the exit code.

    ``disks``: use the campaigns that have a file system of their own. Raises ``NotHere``.
    """
    folder = Path(tempfile.mkdtemp(prefix="flintmq-rounds-"))
    command = "./scripts/soak/run --disks" if disks else "./scripts/soak/run"
    outcome = Run(seed, folder, on_a_real_disk if disks else on_this_disk, command)
    plan = disk_campaigns(seed) if disks else campaigns(seed)
    with PreparedParent(folder) as prepared:
        if campaign is None:
            outcome.go(prepared, plan, rounds)
        else:
            (planned,) = itertools.islice(plan, campaign, campaign + 1)
            outcome.go(prepared, [planned], len(planned.rounds))
    which = f"--rounds {rounds}" if campaign is None else f"--campaign {campaign}"
    table(outcome.tallies, Tally(), "round", COLUMNS, {"s": lambda tally: f"{tally.seconds:,.0f}"})
    machine = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    print(
        f"\n`{command} {which} --seed {seed}`: {machine}, {datetime.now(UTC):%Y-%m-%d}, {outcome.seconds:,.0f} s, "
        f"{outcome.seconds / max(done(outcome.tallies), 1):.2f} s per round"
    )
    missed = sorted(set(POINTS) - outcome.hit)
    if not disks:
        print(
            f"{len(outcome.hit)} of {len(POINTS)} named points reached"
            + (f"; not: {', '.join(missed)}" if missed else "")
        )
    if ended(len(outcome.failed), folder):
        return 1
    if missed and not disks and campaign is None and rounds >= ALL_POINTS_AFTER_ROUNDS:
        print(f"FAILED: after {rounds} rounds every named point must have been reached", file=sys.stderr)
        return 1
    return 0


def table(
    tallies: Mapping[str, T], total: T, kind: str, columns: Mapping[str, str], more: Mapping[str, Callable[[T], str]]
) -> None:
    """Print the result as Markdown: a row for each kind of round, and one for all, which are added up in ``total``.

    ``columns``: heads of numbers by their attributes; ``more``: further cells by their heads.
    """
    for tally in tallies.values():
        for name in vars(tally):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    print(f"| {' | '.join([kind, *columns.values(), *more])} |\n|---|" + "---:|" * (len(columns) + len(more)))
    for name, tally in (*sorted(tallies.items()), ("**all**", total)):
        if tally.rounds:
            cells = [f"{getattr(tally, column):,}" for column in columns] + [cell(tally) for cell in more.values()]
            print(f"| {' | '.join([name.replace('|', chr(92) + '|'), *cells])} |")


def ended(failed: int, folder: Path) -> bool:
    """Return whether campaigns have failed, and say where their stores are; without failures, remove the folder."""
    if failed:
        print(f"FAILED: {failed} campaigns; their stores are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return failed > 0
