"""Opening a store for reading, either stopped or while a broker serves it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...protocol.errors import ConfigurationError
from ..store.errors import StoreLocked
from .findings import Findings
from .log_end import find_end
from .offline import OfflineStore

ATTEMPTS = 20
PAUSE_S = 0.01


@contextmanager
def open_for_reading(
    path: Path, findings: Findings, *, running: bool, index_slots: int | None
) -> Iterator[tuple[OfflineStore, int]]:
    """Return the store, and the physical offset below which it may be read.

    ``running``: without a lock, while a FlintMQ broker runs. A broker never changes what it has flushed, and its
    checkpoint says how far that is. Raises ``StoreLocked``, or ``ConfigurationError``.
    """
    if running:
        store = _open_running(path, findings, index_slots)
        assert store.checkpoint.mark is not None
        end = store.checkpoint.mark.flushed_offset
    else:
        try:
            store = OfflineStore(path, findings, index_slots=index_slots)
        except StoreLocked as error:
            raise StoreLocked(f"{error}, or pass --running to read up to its flushed offset") from None
        end = find_end(store).offset
    with store:
        yield store, end


def _open_running(path: Path, findings: Findings, index_slots: int | None) -> OfflineStore:
    """Open the store of a running broker: the checkpoint may be half written when read, and old files may vanish."""
    for attempt in range(ATTEMPTS):
        try:
            store = OfflineStore(path, findings, shared=False, index_slots=index_slots)
        except FileNotFoundError:
            if attempt + 1 == ATTEMPTS:
                raise
        else:
            if store.checkpoint.mark is not None:
                return store
            store.close()
        time.sleep(PAUSE_S)
    raise ConfigurationError(
        f"{path} cannot be read beside a broker: its checkpoint has no flushed offset (RocketMQ writes none). Stop the "
        "broker first"
    )
