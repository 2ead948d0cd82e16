"""The cause that ``scripts/bench/run --case tail`` gives for a pause of the broker's loop."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.scripts.bench.stalls import CAUSES, Stall, split_stacks

MS = 1_000_000
STACKS = """
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/x/broker/background/loop_work.py", line 91 in _run

Thread 0x00007f02 (most recent call first):
  File "/x/broker/store/index.py", line 410 in remove_first
  File "/x/broker/background/loop_work.py", line 91 in _run

Current thread 0x00007f03 (most recent call first):
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/x/broker/store/files/file_system.py", line 117 in sync_folder
  File "/x/broker/store/index.py", line 329 in _create
  File "/x/broker/store/index.py", line 310 in put
  File "/x/scripts/bench/stalls.py", line 101 in main
"""


def stall(ms: float, stack: Any = (), **spent: Any) -> Stall:
    """Return a stall of ``ms`` milliseconds, of which the loop's thread spent some in the named ways."""
    kept = {"user": 0.0, "system": 0.0, "waited": 0.0, "collector": 0.0, "major_faults": 0, **spent}
    return Stall(0, int((ms + 1) * MS), stack=stack, **kept)


def test_the_stack_of_the_loop_and_the_busy_threads_are_found() -> None:
    main, others = split_stacks(STACKS)
    assert [function for _, _, function in main] == ["sync_folder", "_create", "put", "main"]
    assert others == [("index.py", 410, "remove_first")]


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (stall(30, waited=26.0, user=4.0), "processor"),
        (stall(30, waited=10.0, user=20.0, collector=15.0), "collector"),
        (stall(30, split_stacks(STACKS)[0]), "index_file"),
        (stall(30, [("index.py", 310, "put")], user=2.0), "index_write"),
        (stall(30, [("pull.py", 1, "pull")], user=20.0), "work"),
        (stall(30), "unknown"),
    ],
)
def test_a_stall_has_the_cause_that_took_most_of_its_own_time(found: Stall, cause: str) -> None:
    assert found.cause == cause
    assert CAUSES[cause] in str(found)
