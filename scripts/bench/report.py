"""Figures as JSON, and as the table of the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .measure import Measure, Result


def as_json(results: Sequence[Result], facts: dict[str, Any]) -> dict[str, Any]:
    """Return all results: ``facts`` about the machine and the method, then each case with every figure."""
    return {**facts, "cases": [_case_json(result) for result in results]}


def _case_json(result: Result) -> dict[str, Any]:
    measures = [_measure_json(result, measure) for measure in result.case.measures if result.figures(measure)]
    return {
        "name": result.case.name,
        "title": result.case.title,
        "failure": result.failure,
        "skipped": result.skipped,
        "measures": measures,
    }


def _measure_json(result: Result, measure: Measure) -> dict[str, Any]:
    median = result.median(measure)
    return {
        "name": measure.key,
        "title": measure.title,
        "unit": measure.unit,
        "median": median,
        "best": result.best(measure),
        "runs": result.figures(measure),
        "target": measure.target,
        "reached": measure.reached(median),
    }


def as_markdown(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """Return a table with one row per measure, followed by the machine and the method."""
    lines = [f"| measured | reach | median of {facts['runs']} | best |", "|---|---|---|---|"]
    for result in results:
        lines.append(f"| **{result.case.title}** | | | |")
        shown = [measure for measure in result.case.measures if measure.in_table and result.figures(measure)]
        lines.extend(_row(result, measure) for measure in shown)
        if result.skipped:
            lines.append(f"| *skipped: {result.skipped.splitlines()[0]}* | | | |")
        if result.failure:
            lines.append(f"| *failed: {result.failure.splitlines()[0]}* | | | |")
    for result in results:
        if result.case.tables is not None and result.samples:
            lines += result.case.tables(result)
    lines += ["", f"{'; '.join([facts['machine'], facts['way'], *facts['notes']])}."]
    return "\n".join(lines)


def _row(result: Result, measure: Measure) -> str:
    median = result.median(measure)
    missed = " (missed)" if measure.reached(median) is False else ""
    cells = [measure.title, measure.show_target(), measure.show(median) + missed, measure.show(result.best(measure))]
    return f"| {' | '.join(cells)} |"
