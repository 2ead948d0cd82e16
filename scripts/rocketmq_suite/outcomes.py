"""Outcomes of single cases, and the table of the suites."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

State = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case. ``detail``: the failure, or the reason why the case is not applicable."""

    suite: str
    case: str
    state: State
    detail: str = ""


@dataclass
class Report:
    """The outcomes so far; prints each as it arrives. Threads may share a report."""

    outcomes: list[Outcome] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Suites that did not run, and the reasons."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, and print it with the first line of its detail."""
        first = outcome.detail.strip().partition("\n")[0]
        with self._lock:
            self.outcomes.append(outcome)
            print(f"{outcome.state:<14} {outcome.suite}: {outcome.case}{f' ({first})' if first else ''}", flush=True)

    def add_absent(self, suite: str, reason: str) -> None:
        """Say that a whole suite did not run."""
        self.absent[suite] = reason
        print(f"{suite} did not run: {reason}", file=sys.stderr, flush=True)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.state == "failed"]

    def table(self) -> str:
        """Return a table in Markdown: for each suite its passed, failed and not applicable cases, and all reasons."""
        lines = ["| suite | passed | failed | not applicable |", "|---|---|---|---|"]
        for suite in dict.fromkeys(outcome.suite for outcome in self.outcomes):
            counts = Counter(outcome.state for outcome in self.outcomes if outcome.suite == suite)
            lines.append(f"| {suite} | {counts['passed']} | {counts['failed']} | {counts['not applicable']} |")
        lines += [f"| {suite} | did not run: {reason} | | |" for suite, reason in self.absent.items()]
        reasons = Counter((o.suite, o.detail) for o in self.outcomes if o.state == "not applicable")
        if reasons:
            lines += ["", "| not applicable | cases | because |", "|---|---|---|"]
            lines += [f"| {suite} | {count} | {reason} |" for (suite, reason), count in reasons.items()]
        return "\n".join(lines)


def chosen(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that contain one of the patterns; all names if there are no patterns."""
    patterns = list(patterns)
    return [name for name in names if not patterns or any(pattern in name for pattern in patterns)]
