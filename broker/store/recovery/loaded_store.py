"""The parts of a store that a recovery works on, and the units and keys that its log asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import UNIT_BYTES
from ...kernels import dispatch as kernel
from ..derivation import CheckDerivation, Run
from ..dispatch import damaged_record, impossible_queue

if TYPE_CHECKING:
    from ..damage import Quarantine
    from ..dispatch import Dispatcher
    from ..errors import DamagedRecord
    from ..index import IndexService
    from ..log.commitlog import CommitLog
    from ..queues import ConsumeQueueTable
    from ..tables.checkpoint import StoreCheckpoint
    from ..tables.store_state import StoreState
    from ..tables.topic_table import TopicTable

Progress = Callable[[str, int, int], None]
"""Called with (what is done, bytes done, bytes in all)."""
DERIVED_CHUNK_BYTES = 4 * 1024 * 1024
"""CommitLog bytes that one kernel call derives from a store with few queues."""
QUEUES_A_CHUNK = 512
"""Number of queues for which these bytes are enough. With more, a call derives more: the runs of a call are compared
one by one, and each queue should have few long ones."""
_CHUNKS_A_CALL_MAX = 16


@dataclass(frozen=True, slots=True)
class Derived:
    """The units and keys of a part of the log that ends at the physical offset ``end``.

    ``keys``: rows of the kernel's in one array. In ``runs``, the queue offsets of a queue ascend.
    """

    end: int
    runs: list[Run]
    keys: np.ndarray


@dataclass(frozen=True, slots=True)
class LoadedStore:
    """A locked store whose files are loaded but not recovered.

    ``clean``: the process that had it before closed it in an orderly way. ``queue_problems``: why queues cannot be
    used, by row; recovery adds to it. ``index_problem``: why the newest index files cannot be used; empty if they can.
    """

    commitlog: CommitLog
    queues: ConsumeQueueTable
    index: IndexService
    checkpoint: StoreCheckpoint
    state: StoreState
    topics: TopicTable
    dispatcher: Dispatcher
    quarantine: Quarantine
    clean: bool
    queue_problems: dict[int, str]
    index_problem: str

    def derive(self, begin: int, end: int, impossible: list[DamagedRecord]) -> Iterator[Derived]:
        """Derive the units and keys of ``[begin, end)`` as dispatch would, up to the first record that is not sound.

        Both bounds must be record boundaries. A yielded object is valid until the next step. Adds records whose parts
        are sound but which no queue can have to ``impossible``, and skips them. A record whose queue offset is not
        above those of its queue before it has no unit.
        """
        times = min(1 + len(self.queues.rows) // QUEUES_A_CHUNK, _CHUNKS_A_CALL_MAX)
        commitlog, derivation = self.commitlog, CheckDerivation(self.queues, kernel.DERIVE, times=times)
        following: dict[int, int] = {}
        at = begin
        while at < end and (file := commitlog.queue.find(at)) is not None:
            array, position = file.array(), at - file.start_offset
            stop = min(position + times * DERIVED_CHUNK_BYTES, end - file.start_offset, file.size)
            status, position = derivation.step(array, position, stop, file.start_offset)
            at = file.end_offset if status == kernel.BLANK else file.start_offset + position
            yield Derived(at, list(_ascending(derivation, following)), derivation.required_keys())
            for kind, place, _ in derivation.flaws():
                if kind == kernel.FLAW_NO_QUEUE_OFFSET:
                    impossible.append(damaged_record(file, place, kernel.BAD_QUEUE_OFFSET))
            if status == kernel.NEW_QUEUE:
                impossible.append(impossible_queue(commitlog, at, *derivation.record_queue(array, position)[:2]))
                at += derivation.record_bytes
            elif status == kernel.BLANK:
                file.release()
            elif status not in (kernel.DONE, kernel.FULL):
                return


def _ascending(derivation: CheckDerivation, following: dict[int, int]) -> Iterator[Run]:
    """Yield the runs of a step without the units that are not above the earlier ones of their queue.

    ``following``: the queue offset after the last one, by the queue's row.
    """
    for queue, queue_offset, units in derivation.unit_runs():
        next_offset = queue_offset + len(units) // UNIT_BYTES
        skipped = max(following.get(queue.row, 0) - queue_offset, 0)
        if skipped < next_offset - queue_offset:
            following[queue.row] = next_offset
            yield Run(queue, queue_offset + skipped, units[skipped * UNIT_BYTES :])
