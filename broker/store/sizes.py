"""Size of a store: files and bytes of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.storage.layout import INDEX_ENTRY_BYTES

if TYPE_CHECKING:
    from .message_store import MessageStore
    from .queues import ConsumeQueue


@dataclass(frozen=True, slots=True)
class KindSize:
    """``bytes``: used bytes of the files, without preallocated space."""

    files: int
    bytes: int


def store_sizes(store: MessageStore, queues: Iterable[ConsumeQueue]) -> dict[str, KindSize]:
    """Return the size of each kind: commitlog, consumequeue, index. Any thread may call it; it reads nothing from disk.

    ``queues``: the store's queues. There may be many, so the iterator of the caller decides how fast they are visited.
    """
    queue_files = queue_bytes = 0
    for queue in queues:
        files, size = queue.size()
        queue_files += files
        queue_bytes += size
    log_files = store.commitlog.queue.files
    index_files = list(store.index.files)
    return {
        "commitlog": KindSize(len(log_files), store.write_offset - log_files[0].start_offset if log_files else 0),
        "consumequeue": KindSize(queue_files, queue_bytes),
        "index": KindSize(
            len(index_files), sum(file.entries_at + INDEX_ENTRY_BYTES * file.index_count for file in index_files)
        ),
    }
