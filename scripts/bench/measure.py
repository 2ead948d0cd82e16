"""Cases, their measures, and the resulting figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .bench import Bench

Sample: TypeAlias = dict[str, float]
"""Figures of one run of a case, by the keys of its measures."""
Samples: TypeAlias = Generator[Sample, None, None]
"""One sample per run."""

_NUMBER = {
    "msg/s": ",.0f",
    "rows/s": ",.0f",
    "µs": ",.0f",
    "ns": ",.0f",
    "µs/row": ".2f",
    "µs/msg": ".2f",
    "ms": ".2f",
    "s": ".2f",
    "GB/s": ".2f",
    "MB": ",.0f",
    "KiB": ",.1f",
    "×": ".2f",
    "times": ".2f",
    "queues": ",.0f",
    "%": ",.1f",
}
_MORE_IS_BETTER = {"msg/s", "rows/s", "GB/s", "×"}


class BenchFailed(Exception):
    """Error: a case cannot continue, or it got a wrong result, so its figures would be meaningless."""


class Skipped(Exception):
    """Error: the rest of a case cannot be measured here. The message has the reason and what to install."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a case. ``unit``: a key of ``_NUMBER``; ``target``: value to reach, or None.

    ``in_table``: show it in the table, not only in the JSON.
    """

    key: str
    title: str
    unit: str
    target: float | None = None
    in_table: bool = True

    @property
    def more_is_better(self) -> bool:
        return self.unit in _MORE_IS_BETTER

    def show(self, figure: float) -> str:
        """Return ``figure`` as the table shows it."""
        return f"{figure:{_NUMBER[self.unit]}} {self.unit}"

    def show_target(self) -> str:
        """Return the target with its sign; empty if it has none."""
        if self.target is None:
            return ""
        target = f"{self.target:,f}".rstrip("0").rstrip(".")
        return f"{'≥' if self.more_is_better else '≤'} {target} {self.unit}"

    def reached(self, figure: float) -> bool | None:
        """Return whether ``figure`` reaches the target; None if there is no target."""
        if self.target is None:
            return None
        return figure >= self.target if self.more_is_better else figure <= self.target


@dataclass(frozen=True, slots=True)
class Case:
    """A group of measures. ``samples`` yields ``bench.runs`` samples, one per run.

    ``seconds_max``: its time limit, if it takes longer than others.
    ``tables`` returns the lines of further tables, ``plot`` writes an image of the result.
    """

    name: str
    title: str
    measures: tuple[Measure, ...]
    samples: Callable[[Bench], Samples]
    tables: Callable[[Result], list[str]] | None = None
    plot: Callable[[Result, Path], None] | None = None
    seconds_max: float = 0.0


@dataclass(slots=True)
class Result:
    """The samples of one case. ``failure``: reason why some are missing; ``skipped``: measures that were left out."""

    case: Case
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""
    skipped: str = ""

    def figures(self, measure: Measure) -> list[float]:
        return [sample[measure.key] for sample in self.samples if measure.key in sample]

    def median(self, measure: Measure) -> float:
        return statistics.median(self.figures(measure))

    def best(self, measure: Measure) -> float:
        figures = self.figures(measure)
        return max(figures) if measure.more_is_better else min(figures)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` (0 to 1) of ``values`` do not exceed."""
    if not values:
        raise BenchFailed("nothing was measured")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def p50_and_p99(taken: Sequence[float], unit: str) -> Sample:
    """Return both percentiles of seconds in a unit: ``ms`` or ``µs``."""
    times = {"ms": 1e3, "µs": 1e6}[unit]
    return {"p50": percentile(taken, 0.50) * times, "p99": percentile(taken, 0.99) * times}
