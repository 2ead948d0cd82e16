"""A member's own small files on a disk that may be full for a while."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

ROOM_PAUSE_S = 0.5
"""Pause between two attempts to write to a full disk."""


async def write_when_room(write: Callable[[], None], waits: Callable[[], bool], pause_s: float = ROOM_PAUSE_S) -> None:
    """Call ``write`` on a thread, and again after ``pause_s`` seconds as long as the disk is full and ``waits`` agrees.

    Raises the error of ``write``.
    """
    reported = False
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, write)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not waits():
                raise
            if not reported:
                reported = True
                log.error("no space for the state of the replica set: %s; retrying", error)
        await asyncio.sleep(pause_s)
