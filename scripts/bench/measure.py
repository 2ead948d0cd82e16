"""What is measured: cases, their measures, and the figures that come out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .bench import Bench

Sample: TypeAlias = dict[str, float]
"""What one run of a case measured: figures by the keys of its measures."""
Samples: TypeAlias = Generator[Sample, None, None]
"""One sample a run."""

_NUMBER = {
    "msg/s": ",.0f", "rows/s": ",.0f", "µs": ",.0f", "ns": ",.0f", "µs/row": ".2f", "ms": ".2f", "s": ".2f",
    "GB/s": ".2f", "MB": ",.0f", "KiB": ",.1f", "×": ".2f", "× as long": ".1f", "queues": ",.0f",
}  # fmt: skip
_MORE_IS_BETTER = {"msg/s", "rows/s", "GB/s", "×"}


class BenchFailed(Exception):
    """A case cannot go on, or what it got back is wrong: its figures would mean nothing."""


class Skipped(Exception):
    """The rest of a case cannot be measured here; the message says why, and what to install."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a case. ``unit``: a key of ``_NUMBER``; ``target``: what is to be reached, if anything.

    ``in_table``: whether it stands in the table, or only in the JSON.
    """

    key: str
    title: str
    unit: str
    target: float | None = None
    in_table: bool = True

    @property
    def more_is_better(self) -> bool:
        """Whether a larger figure is the better one."""
        return self.unit in _MORE_IS_BETTER

    def show(self, figure: float) -> str:
        """``figure`` as it stands in a table."""
        return f"{figure:{_NUMBER[self.unit]}} {self.unit}"

    def show_target(self) -> str:
        """The target with its sign; empty where there is none."""
        if self.target is None:
            return ""
        target = f"{self.target:,f}".rstrip("0").rstrip(".")
        return f"{'≥' if self.more_is_better else '≤'} {target} {self.unit}"

    def reached(self, figure: float) -> bool | None:
        """Whether ``figure`` is as good as the target; None where there is none."""
        if self.target is None:
            return None
        return figure >= self.target if self.more_is_better else figure <= self.target


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured together. ``samples`` yields one sample a run, as many as ``bench.runs``."""

    name: str
    title: str
    measures: tuple[Measure, ...]
    samples: Callable[[Bench], Samples]


@dataclass(slots=True)
class Result:
    """The samples of one case; ``failure`` says why there are fewer than asked for, ``skipped`` what is left out."""

    case: Case
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""
    skipped: str = ""

    def figures(self, measure: Measure) -> list[float]:
        """One figure a run."""
        return [sample[measure.key] for sample in self.samples if measure.key in sample]

    def median(self, measure: Measure) -> float:
        """The middle one of the runs."""
        return statistics.median(self.figures(measure))

    def best(self, measure: Measure) -> float:
        """The best one of the runs."""
        figures = self.figures(measure)
        return max(figures) if measure.more_is_better else min(figures)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of ``values`` do not exceed."""
    if not values:
        raise BenchFailed("nothing was measured")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
