"""Copying a large file while hashing it in a second thread, so that the disk stays busy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from ..store.files.file_system import Files

CHUNK_BYTES = 4 << 20
SYNC_BYTES = 64 << 20
"""Number of bytes written before they are flushed in parallel with the copy."""


class Digest(Protocol):
    """A hash object of ``hashlib``."""

    def update(self, data: Any, /) -> None:
        """Hash these bytes."""


def copy_summed(
    files: Files,
    source: int,
    target: int,
    begin: int,
    end: int,
    digest: Digest,
    step: Callable[[int], None],
    *,
    write: bool = True,
) -> int:
    """Copy ``[begin, end)`` of the descriptor ``source`` to the same place of ``target``, and sum it.

    ``step``: called with the size of each finished chunk. ``write`` False: only hash. Returns the end of the copy, less
    than ``end`` if the source ends before. Not all written bytes are on disk yet.
    """
    buffers = [memoryview(bytearray(min(CHUNK_BYTES, max(end - begin, 1)))) for _ in range(2)]
    summing: Future[None] | None = None
    syncing: Future[None] | None = None
    unsynced, at = 0, begin
    with ThreadPoolExecutor(2, "copy") as pool:
        while at < end:
            buffers.reverse()  # the other buffer is being hashed
            chunk = buffers[0][: min(len(buffers[0]), end - at)]
            chunk = chunk[: files.read(source, chunk, at, wait=True)]
            # Digests need the chunks in order, and the next turn reads into this one's buffer.
            if summing is not None:
                summing.result()
            if not len(chunk):
                break
            summing = pool.submit(digest.update, chunk)
            if write:
                files.write(target, chunk, at)
                unsynced += len(chunk)
                if unsynced >= SYNC_BYTES and (syncing is None or syncing.done()):
                    if syncing is not None:
                        # The kernel reports a failed flush only once.
                        syncing.result()
                    syncing, unsynced = pool.submit(files.sync_data, target), 0
            at += len(chunk)
            step(len(chunk))
        for future in (summing, syncing):
            if future is not None:
                future.result()
    return at
