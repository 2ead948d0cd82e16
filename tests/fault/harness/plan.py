"""Plan of a long run: an endless sequence of campaigns that follows from the seed alone, so that any of them can be
repeated."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .points import POINTS

ROUNDS_A_CAMPAIGN = 12
"""Rounds before a new store is used: keeps what each round has to read small."""
KINDS = ("kill",) * 4 + ("point",) * 9 + ("power",) * 4 + ("error",) * 4 + ("damage",) * 4
"""Number of rounds of each kind in so many rounds."""
RARE = tuple(name for name in POINTS if name.startswith("retention"))
DISK_KINDS = ("shutdown", "sync", "fill")
"""Kinds of campaigns on a file system of their own."""
RARE_A_CAMPAIGN = 2
"""Most points of retention in a campaign with retention; with more, the other points would wait for too long."""
ALL_POINTS_AFTER_ROUNDS = 200
"""Number of rounds after which every point was due."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned campaign, the ``number``-th of the run. ``rounds``: their kinds; a kind for a point has its name."""

    number: int
    seed: str
    sync: bool
    retention: bool
    checksums: bool
    rounds: list[str]


class Deck:
    """Cards in random order; shuffled again after the last one is drawn."""

    def __init__(self, source: random.Random, cards: Sequence[str]) -> None:
        self._source = source
        self._cards = list(cards)
        self._left: list[str] = []

    def draw(self) -> str:
        """Return the next card."""
        if not self._left:
            self._left = self._source.sample(self._cards, len(self._cards))
        return self._left.pop()


def campaigns(seed: int) -> Iterator[Planned]:
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
    """Yield the campaigns on separate file systems of the run with that seed. All use sync flush: what async flush may
    lose when ext4 is shut down is undefined."""
    for number in itertools.count():
        kind = DISK_KINDS[number % len(DISK_KINDS)]
        rounds = [kind] * ROUNDS_A_CAMPAIGN
        yield Planned(number, f"{seed} disks {number}", True, kind == "fill", number % 2 == 0, rounds)
