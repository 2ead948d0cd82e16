"""Rounds of the fault harness against real brokers; ``scripts/soak/run --rounds`` runs a thousand.

The test command uses the same seed each time, so that a failure comes from a change in the code; ``FLINTMQ_SEED``
selects another. A seed repeats a run as far as threads permit: see ``harness/README.md``.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fault.harness.brokers import PreparedParent
from tests.fault.harness.plan import ALL_POINTS_AFTER_ROUNDS, campaigns
from tests.fault.harness.points import POINTS
from tests.fault.harness.rounds import ERRORS_NTH_MAX, Campaign, RoundFailed
from tests.fault.harness.tally import Tally

SEED = os.environ.get("FLINTMQ_SEED", "20261122")
POINTS_A_RUN = int(os.environ.get("FLINTMQ_POINTS", "16"))
"""Points that differ with every seed; the long run reaches all."""
DAMAGES = ("log", "consumequeue", "table", "log", "index", "log", "checkpoint", "table", "timers")
RARE = [name for name in POINTS if name.startswith("retention")]


def run(prepared: PreparedParent, folder: Path, rounds: list[str], **options: Any) -> Campaign:
    """Run a campaign of these rounds; fail if one of them does."""
    print(f"seed {SEED}")  # noqa: T201 - printed to repeat a failure
    options = {"sync": True, **options}
    campaign = Campaign(prepared, folder, f"{SEED} {rounds[0]}", **options)
    tallies: dict[str, Tally] = {}
    asyncio.run(campaign.run(rounds, tallies, lambda: None))
    assert sum(tally.rounds for tally in tallies.values()) == len(rounds)
    assert all(tally.acknowledged for tally in tallies.values())
    return campaign


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_broker_killed_at_any_moment_keeps_acknowledged_and_served_messages(
    prepared: PreparedParent, tmp_path: Path, flush: str
) -> None:
    run(prepared, tmp_path, ["kill"] * 5, sync=flush == "sync")


def test_a_broker_killed_at_named_points_keeps_acknowledged_and_served_messages(
    prepared: PreparedParent, tmp_path: Path
) -> None:
    names = random.Random(SEED).sample([name for name in POINTS if name not in RARE], POINTS_A_RUN)
    campaign = run(prepared, tmp_path, [f"point:{name}" for name in names])
    assert campaign.hit == set(names)


def test_a_broker_killed_during_retention_loses_nothing_else(prepared: PreparedParent, tmp_path: Path) -> None:
    campaign = run(prepared, tmp_path, [f"point:{name}" for name in RARE], retention=True)
    assert campaign.hit == set(RARE)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_power_cut_loses_only_unflushed_messages(prepared: PreparedParent, tmp_path: Path, flush: str) -> None:
    run(prepared, tmp_path, ["power"] * 5, sync=flush == "sync")


@pytest.mark.parametrize(("flush", "checksums"), [("sync", True), ("async", False)], ids=["sync-checksummed", "async"])
def test_damage_between_two_runs_costs_only_messages_that_are_reported(
    prepared: PreparedParent, tmp_path: Path, flush: str, checksums: bool
) -> None:
    run(prepared, tmp_path, [f"damage:{kind}" for kind in DAMAGES], sync=flush == "sync", checksums=checksums)


def test_a_broker_acknowledges_no_lost_message_after_a_disk_error_and_survives_a_full_disk(
    prepared: PreparedParent, tmp_path: Path
) -> None:
    source = random.Random(SEED)
    rounds = []
    for operation, nth_max in ERRORS_NTH_MAX.items():
        for name in ("EIO", "ENOSPC"):
            if operation != "unlink":  # unlink needs retention
                rounds.append(f"error:{operation} {name} {source.randint(1, nth_max)}")
    source.shuffle(rounds)
    run(prepared, tmp_path, rounds)


@pytest.mark.parametrize("seed", range(20))
def test_a_long_run_reaches_every_named_point(seed: int) -> None:
    rounds: list[str] = []
    for planned in campaigns(seed):
        rounds += planned.rounds
        if len(rounds) >= ALL_POINTS_AFTER_ROUNDS:
            break
    assert {f"point:{name}" for name in POINTS} <= set(rounds[:ALL_POINTS_AFTER_ROUNDS])


# The harness itself: it finds a broken broker, and a fault that never happens.


def test_the_power_cut_finds_a_flush_that_does_nothing(prepared: PreparedParent, tmp_path: Path) -> None:
    with pytest.raises(RoundFailed, match=r"lost|before it listened"):
        run(prepared, tmp_path, ["power"] * 12, broken={"lying": True})


def test_the_power_cut_finds_an_acknowledgement_before_the_flush(prepared: PreparedParent, tmp_path: Path) -> None:
    # Its queues may have more than its log: a start may refuse them before it finds out what is lost.
    with pytest.raises(RoundFailed, match=r"lost|before it listened"):
        run(prepared, tmp_path, ["power"] * 12, broken={"acknowledges_early": True})


def test_unreported_losses_by_damage_are_found(
    prepared: PreparedParent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fault.harness.rounds.lost_messages", lambda store: frozenset())
    with pytest.raises(RoundFailed, match=r"round \d+ \(damage:log\): lost"):
        run(prepared, tmp_path, ["damage:log"] * 8, checksums=True)


def test_a_fault_that_never_happens_is_an_error(prepared: PreparedParent, tmp_path: Path) -> None:
    with pytest.raises(RoundFailed, match=r"HarnessError.*was not reached"):
        run(prepared, tmp_path, ["point:stop: the abort file is gone"], broken={"faultless": True})


def test_an_acknowledgement_after_a_failed_flush_is_found(prepared: PreparedParent, tmp_path: Path) -> None:
    with pytest.raises(RoundFailed, match="was acknowledged, and the sync at"):
        run(prepared, tmp_path, ["error:sync_data EIO 20 commitlog/.*"] * 6, broken={"acknowledges_early": True})
