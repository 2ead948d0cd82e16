"""The cause that ``scripts/bench/run --case tail`` gives for a pause of the broker's loop."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.scripts.bench.stalls import CAUSES, Stall, read_stack

MS = 1_000_000
STACKS = """
Stack (most recent call first):
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/x/broker/store/files/file_system.py", line 117 in sync_folder
  File "/x/broker/store/index.py", line 329 in _create
  File "/x/broker/store/index.py", line 310 in put
Stack (most recent call first):
  File "/x/broker/store/index.py", line 410 in remove_first
"""


def stall(ms: float, stack: Any = (), **spent: Any) -> Stall:
    """Return a stall of ``ms`` milliseconds, of which the loop's thread spent some in the named ways."""
    kept = {"user": 0.0, "system": 0.0, "waited": 0.0, "collector": 0.0, "major_faults": 0, "waits": 1, **spent}
    return Stall(0, int((ms + 1) * MS), stack=stack, **kept)


def test_the_first_stack_of_a_pause_is_read() -> None:
    assert [function for _, _, function in read_stack(STACKS)] == ["sync_folder", "_create", "put"]


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (stall(30, waited=26.0, user=4.0), "processor"),
        (stall(30, waited=10.0, user=20.0, collector=15.0), "collector"),
        (stall(30, read_stack(STACKS)), "index_file"),
        (stall(30, [("index.py", 310, "put")], user=2.0), "index_write"),
        (stall(30, [("pull.py", 1, "pull")], user=20.0), "work"),
        (stall(30, [("pull.py", 1, "pull")], waits=40), "interpreter"),
        (stall(30), "unknown"),
    ],
)
def test_a_stall_has_the_cause_that_took_most_of_its_own_time(found: Stall, cause: str) -> None:
    assert found.cause == cause
    assert CAUSES[cause] in str(found)
