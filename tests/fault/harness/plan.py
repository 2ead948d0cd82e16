"""What a long run consists of: campaigns without end, a function of the seed alone. So any of them can be run again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .points import POINTS

ROUNDS_A_CAMPAIGN = 12
"""Then a new store: what has to be read after each round stays small."""
KINDS = ("kill",) * 4 + ("point",) * 9 + ("power",) * 4 + ("error",) * 4 + ("damage",) * 4
"""Of so many rounds, so many are of each kind."""
RARE = tuple(name for name in POINTS if name.startswith("retention"))
DISK_KINDS = ("shutdown", "sync", "fill")
"""A campaign on a file system of its own is of one of them."""
RARE_A_CAMPAIGN = 2
"""How many of the points of retention a campaign with retention gets at most, or the other points wait for too long."""
ALL_POINTS_AFTER_ROUNDS = 200
"""After so many rounds every point was due."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A campaign to come, the ``number``-th of the run. ``rounds``: their kinds, those at a point with its name."""

    number: int
    seed: str
    sync: bool
    retention: bool
    checksums: bool
    rounds: list[str]


class Deck:
    """Cards in random order; shuffled again when all have been drawn."""

    def __init__(self, source: random.Random, cards: Sequence[str]) -> None:
        self._source = source
        self._cards = list(cards)
        self._left: list[str] = []

    def draw(self) -> str:
        """The next card."""
        if not self._left:
            self._left = self._source.sample(self._cards, len(self._cards))
        return self._left.pop()


def campaigns(seed: int) -> Iterator[Planned]:
    """The campaigns of the run with that seed."""
    source = random.Random(seed)
    kinds = Deck(source, KINDS)
    rare = Deck(source, RARE)
    points = Deck(source, [name for name in POINTS if name not in RARE])
    for number in itertools.count():
        retention = number % 3 == 2
        rare_left = RARE_A_CAMPAIGN if retention else 0
        rounds = []
        for _ in range(ROUNDS_A_CAMPAIGN):
            kind = kinds.draw()
            if kind == "point":
                kind = f"point:{(rare if rare_left > 0 else points).draw()}"
                rare_left -= 1
            rounds.append(kind)
        yield Planned(number, f"{seed} {number}", source.random() < 0.6, retention, number % 2 == 0, rounds)


def disk_campaigns(seed: int) -> Iterator[Planned]:
    """The campaigns on file systems of their own of the run with that seed. Under sync flush: what async flush may lose
    when ext4 is shut down, nobody knows."""
    for number in itertools.count():
        kind = DISK_KINDS[number % len(DISK_KINDS)]
        rounds = [kind] * ROUNDS_A_CAMPAIGN
        yield Planned(number, f"{seed} disks {number}", True, kind == "fill", number % 2 == 0, rounds)
