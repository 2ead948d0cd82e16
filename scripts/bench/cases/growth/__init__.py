"""Growth: how rate, memory and latency change with the number of messages, topics and connections."""

from __future__ import annotations

from pathlib import Path

from ...bench import Bench
from ...measure import Case, Result, Sample, Samples, Skipped
from ...plot import Panel, draw
from .connections import CONNECTIONS
from .messages import MESSAGES
from .topics import TOPICS

PARTS = (MESSAGES, TOPICS, CONNECTIONS)


def samples(bench: Bench) -> Samples:
    """Yield one sample per run; afterwards, the reasons for the sizes that were left out end the case."""
    left_out: list[str] = []
    for _ in range(bench.runs):
        sample: Sample = {}
        for part in PARTS:
            for found in part.measure(bench):
                if isinstance(found, Skipped):
                    left_out.append(str(found))
                else:
                    size, figures = found
                    sample |= {part.key(size, figure): figures[figure.name] for figure in part.figures}
        yield sample
    if left_out:
        raise Skipped("; ".join(dict.fromkeys(left_out)))


def tables(result: Result) -> list[str]:
    """Return the lines of a table for each part."""
    return [line for part in PARTS for line in ("", *part.table(result))]


def plot(result: Result, path: Path) -> None:
    """Write a plot with a panel for each part to ``path``, as SVG."""
    panels = [
        Panel(part.title, {figure.title: part.line(result, figure) for figure in part.figures if figure.plotted})
        for part in PARTS
    ]
    path.write_text(draw("Figures relative to those of the smallest size", panels))


CASE = Case(
    "growth",
    "growth of messages, topics and connections",
    tuple(measure for part in PARTS for measure in part.measures()),
    samples,
    tables,
    plot,
)
