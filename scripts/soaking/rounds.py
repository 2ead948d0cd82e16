"""``scripts/soak --rounds``: campaigns of the fault harness (``tests/fault/harness``), and the table at the end."""

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.fault.harness.brokers import PreparedParent
from tests.fault.harness.mounts import NotHere
from tests.fault.harness.plan import ALL_POINTS_AFTER_ROUNDS, Planned, campaigns, disk_campaigns
from tests.fault.harness.points import POINTS
from tests.fault.harness.real_disks import on_a_real_disk
from tests.fault.harness.rounds import Campaign, RoundFailed
from tests.fault.harness.tally import Tally

SHOWN_EVERY_S = 10.0
FAILED_MAX = 25
"""So many failed campaigns are enough: the run ends."""
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
    "resent": "in doubt, sent again, stored once",
    "reported": "damaged, and reported",
    "unchecked": "changed where nothing is checked",
    "tail": "unflushed, gone with the power (async)",
}


Opened = Callable[[PreparedParent, Path, Planned], AbstractContextManager[Campaign]]


@contextmanager
def on_this_disk(prepared: PreparedParent, folder: Path, planned: Planned) -> Iterator[Campaign]:
    """A campaign whose store lies in ``folder``."""
    yield Campaign(
        prepared, folder, planned.seed, sync=planned.sync, retention=planned.retention, checksums=planned.checksums
    )


class Run:
    """So many rounds, campaign after campaign. One that fails ends there, and its store is kept; the run goes on.

    ``folder``: where stores lie while they are worked on. ``opened``: makes a campaign.
    """

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
    def done(self) -> int:
        """Rounds until now, those that failed too."""
        return sum(tally.rounds for tally in self.tallies.values())

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def go(self, prepared: PreparedParent, planned: Iterable[Planned], rounds: int) -> None:
        """Until so many rounds are done, or too much has failed."""
        for each in planned:
            if self.done >= rounds or len(self.failed) >= FAILED_MAX:
                return
            self._campaign(prepared, each, each.rounds[: rounds - self.done])

    def _campaign(self, prepared: PreparedParent, planned: Planned, rounds: list[str]) -> None:
        folder = self._folder / f"campaign-{planned.number}"
        folder.mkdir()
        with self._opened(prepared, folder, planned) as campaign:
            try:
                asyncio.run(campaign.run(rounds, self.tallies, self._show))
            except Exception as failure:  # noqa: BLE001 - whatever it is: said, counted, and the other campaigns go on
                self.failed.append(planned.number)
                if not isinstance(failure, RoundFailed):
                    traceback.print_exc()
                print(
                    f"FAILED: campaign {planned.number}: {type(failure).__name__}: {failure}\n"
                    f"  its store is kept: {campaign.keep(folder)}\n"
                    f"  again: {self._command} --seed {self._seed} --campaign {planned.number}",
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
                f"{self.seconds:5.0f} s  {self.done} rounds, {acknowledged:,} messages acknowledged, "
                f"{len(self.failed)} campaigns failed",
                flush=True,
            )


def run(rounds: int, seed: int, campaign: int | None, *, disks: bool) -> int:
    """So many rounds, or only those of one campaign; prints progress and the table. ``disks``: those on file systems of
    their own. The exit code."""
    folder = Path(tempfile.mkdtemp(prefix="flintmq-rounds-"))
    command = "./scripts/soak --disks" if disks else "./scripts/soak"
    made = Run(seed, folder, on_a_real_disk if disks else on_this_disk, command)
    plan = disk_campaigns(seed) if disks else campaigns(seed)
    with PreparedParent(folder) as prepared:
        try:
            if campaign is None:
                made.go(prepared, plan, rounds)
            else:
                (planned,) = itertools.islice(plan, campaign, campaign + 1)
                made.go(prepared, [planned], len(planned.rounds))
        except NotHere as refusal:
            print(f"this machine does not allow it: {refusal}", file=sys.stderr)
            return 1
    which = f"--rounds {rounds}" if campaign is None else f"--campaign {campaign}"
    print(table(made.tallies))
    machine = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    print(
        f"\n`{command} {which} --seed {seed}`: {machine}, {datetime.now(UTC):%Y-%m-%d}, {made.seconds:,.0f} s, "
        f"{made.seconds / max(made.done, 1):.2f} s a round"
    )
    missed = sorted(set(POINTS) - made.hit)
    all_due = not disks and campaign is None and rounds >= ALL_POINTS_AFTER_ROUNDS
    if not disks:
        print(
            f"{len(made.hit)} of {len(POINTS)} named points reached" + (f"; not: {', '.join(missed)}" if missed else "")
        )
    if made.failed:
        print(f"FAILED: {len(made.failed)} campaigns; what they left is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    if all_due and missed:
        print(f"FAILED: after {rounds} rounds every named point must have been reached", file=sys.stderr)
        return 1
    return 0


def table(tallies: dict[str, Tally]) -> str:
    """The result as Markdown: a row for each kind of round, and one for all."""
    total = Tally()
    for tally in tallies.values():
        for name in vars(tally):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    lines = [f"| round | {' | '.join(COLUMNS.values())} | s |", "|---|" + "---:|" * (len(COLUMNS) + 1)]
    for kind, tally in (*sorted(tallies.items()), ("**all**", total)):
        figures = " | ".join(f"{getattr(tally, name):,}" for name in COLUMNS)
        lines.append(f"| {kind} | {figures} | {tally.seconds:,.0f} |")
    return "\n".join(lines)
