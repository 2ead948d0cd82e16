"""Every half of every numbered rule is needed: without it, something breaks that does not break with it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from flintmq.broker.replication.core.rules import Rules
from tests.simulation.chaos import run_seeds
from tests.simulation.core_mutants import CoreMutant, broken
from tests.simulation.disk import Violation
from tests.simulation.rule_table import HALVES, RANDOM, Half, Schedule

RULES = Path(__file__).parents[2] / "docs" / "replication.md"
SEEDS_MAX = 200
"""Random lives show a changed place of the core within this many seeds."""


def name_of(half: Half) -> str:
    """Return the rule and the name of its error."""
    mutant = half.mutant
    return f"{half.rule}-{mutant.name if isinstance(mutant, CoreMutant) else mutant.__name__}"


def test_every_numbered_rule_has_its_halves_in_the_table() -> None:
    numbered = {int(number) for number in re.findall(r"^(\d+)\. \*", RULES.read_text(), re.MULTILINE)}
    assert numbered == {half.rule for half in HALVES} - {0}
    assert len({name_of(half) for half in HALVES}) == len(HALVES)


SHOWN = [half for half in HALVES if half.shown_by is not RANDOM]


@pytest.mark.parametrize("schedule", dict.fromkeys(half.shown_by for half in SHOWN if half.shown_by is not None))
def test_a_schedule_breaks_nothing_with_the_rules(schedule: Schedule) -> None:
    schedule(Rules())


@pytest.mark.parametrize("half", SHOWN, ids=name_of)
def test_a_schedule_needs_its_half(half: Half) -> None:
    assert half.shown_by is not None
    with broken(half.mutant) if isinstance(half.mutant, CoreMutant) else nullcontext():
        rules = Rules() if isinstance(half.mutant, CoreMutant) else half.mutant()
        with pytest.raises(Violation):
            half.shown_by(rules)


@pytest.mark.parametrize(
    "half", [half for half in HALVES if half.shown_by is RANDOM and isinstance(half.mutant, CoreMutant)], ids=name_of
)
def test_random_lives_need_a_half(half: Half) -> None:
    assert isinstance(half.mutant, CoreMutant)
    with broken(half.mutant), pytest.raises(Violation):
        run_seeds(range(SEEDS_MAX))
