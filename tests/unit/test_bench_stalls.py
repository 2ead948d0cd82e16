"""The cause that ``scripts/bench/run --case tail`` gives for a pause of the broker's loop."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from flintmq.scripts.bench.stalls import CAUSES, Stall, frames_of

MS = 1_000_000
CREATED = [("file_system.py", 117, "sync_folder"), ("index.py", 329, "_create"), ("index.py", 310, "put")]


def stall(ms: float, stack: Any = (), **spent: Any) -> Stall:
    """Return a stall of ``ms`` milliseconds, of which the loop's thread spent some in the named ways."""
    kept = {"user": 0.0, "system": 0.0, "waited": 0.0, "collector": 0.0, "major_faults": 0, "waits": 1, **spent}
    return Stall(0, int((ms + 1) * MS), stack=stack, **kept)


def test_a_stack_begins_with_the_innermost_frame() -> None:
    stack = frames_of(sys._getframe())
    assert stack[0][0] == "test_bench_stalls.py"
    assert stack[0][2] == "test_a_stack_begins_with_the_innermost_frame"


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (stall(30, waited=26.0, user=4.0), "processor"),
        (stall(30, waited=10.0, user=20.0, collector=15.0), "collector"),
        (stall(30, CREATED), "index_file"),
        (stall(30, [("index.py", 310, "put")], user=2.0), "index_write"),
        (stall(30, [("pull.py", 1, "pull")], user=20.0), "work"),
        (stall(30, [("pull.py", 1, "pull")], waits=40), "interpreter"),
        (stall(30, waits=0), "processor"),
        (stall(30), "unknown"),
    ],
)
def test_a_stall_has_the_cause_that_took_most_of_its_own_time(found: Stall, cause: str) -> None:
    assert found.cause == cause
    assert CAUSES[cause] in str(found)
