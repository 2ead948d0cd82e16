"""The parts of a store that a recovery works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..damage import Quarantine
    from ..dispatch import Dispatcher
    from ..index import IndexService
    from ..log.commitlog import CommitLog
    from ..queues import ConsumeQueueTable
    from ..tables.checkpoint import StoreCheckpoint
    from ..tables.store_state import StoreState
    from ..tables.topic_table import TopicTable

Progress = Callable[[str, int, int], None]
"""Called with (what is done, bytes done, bytes in all)."""


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
