"""Copying a large file and summing it on the way, each on a processor of its own, the disk kept busy meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from ..store.files import Files

CHUNK_BYTES = 4 << 20
SYNC_BYTES = 64 << 20
"""So much is written before it is put on disk, beside the copying."""


class Digest(Protocol):
    """What a sum is made with; one of ``hashlib``."""

    def update(self, data: Any, /) -> None:
        """Go on with these bytes."""


def copy_summed(
    files: Files, source: int, target: int, begin: int, end: int, digest: Digest, step: Callable[[int], None], *,
    write: bool = True,
) -> int:  # fmt: skip
    """Copy ``[begin, end)`` of the descriptor ``source`` to the same place of ``target``, and sum it.

    ``step``: called with the bytes of each chunk that is done. ``write`` False: sum only. Returns how far it came: less
    than ``end`` where the source ends before. What was written is not on disk yet in all.
    """
    buffers = [memoryview(bytearray(min(CHUNK_BYTES, max(end - begin, 1)))) for _ in range(2)]
    summing: Future[None] | None = None
    syncing: Future[None] | None = None
    unsynced, at = 0, begin
    with ThreadPoolExecutor(2, "copy") as pool:
        while at < end:
            buffers.reverse()  # the other one is being summed
            chunk = buffers[0][: min(len(buffers[0]), end - at)]
            chunk = chunk[: files.read(source, chunk, at, wait=True)]
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
                        syncing.result()
                    syncing, unsynced = pool.submit(files.sync_data, target), 0
            at += len(chunk)
            step(len(chunk))
        for future in (summing, syncing):
            if future is not None:
                future.result()
    return at
