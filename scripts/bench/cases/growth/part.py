"""One part of the growth case: a quantity, its sizes, and the figures measured at each size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ...bench import Bench
from ...measure import Measure, Result, Sample, Skipped

Sized: TypeAlias = Iterator[tuple[int, Sample] | Skipped]
"""The figures of each size by their names, or the reason why a size was left out."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of a part's table. ``plotted``: whether the plot has a line for it."""

    name: str
    title: str
    unit: str
    plotted: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """One quantity that grows through ``sizes``. ``measure`` yields the figures of one run, size by size."""

    name: str
    title: str
    sizes: tuple[int, ...]
    figures: tuple[Figure, ...]
    measure: Callable[[Bench], Sized]

    def key(self, size: int, figure: Figure) -> str:
        """Return the key of a figure's measure at a size."""
        return f"{self.name}_{size}_{figure.name}"

    def measures(self) -> tuple[Measure, ...]:
        """Return a measure for each figure at each size; the part's own table shows them."""
        return tuple(
            Measure(self.key(size, figure), f"{size:,} {self.name}: {figure.title}", figure.unit, in_table=False)
            for size in self.sizes
            for figure in self.figures
        )

    def table(self, result: Result) -> list[str]:
        """Return the lines of a table: a row for each measured size, a column for each figure."""
        medians = {figure.name: dict(self.line(result, figure)) for figure in self.figures}
        measured = [size for size in self.sizes if any(size in line for line in medians.values())]
        if not measured:
            return []
        lines = [f"| {self.title} | {' | '.join(figure.title for figure in self.figures)} |"]
        lines.append("|---" * (1 + len(self.figures)) + "|")
        for size in measured:
            cells = [
                Measure("", "", figure.unit).show(medians[figure.name][size]) if size in medians[figure.name] else ""
                for figure in self.figures
            ]
            lines.append(f"| {size:,} | {' | '.join(cells)} |")
        return lines

    def line(self, result: Result, figure: Figure) -> list[tuple[int, float]]:
        """Return the median of a figure at each size at which it was measured."""
        found = []
        for size in self.sizes:
            measure = Measure(self.key(size, figure), "", figure.unit)
            if result.figures(measure):
                found.append((size, result.median(measure)))
        return found
