"""A power cut inside a running broker: its disk forgets unsynced data, and the process dies."""

from __future__ import annotations

import functools
import random
import threading
from pathlib import Path
from typing import Any

from flintmq.broker.store import MessageStore

from ..power_cut import AtRandom, PowerCutFiles
from .points import end_process


class DyingByPowerCut(PowerCutFiles):
    """File system whose power is cut at the ``lives``-th call: what the disk has then is copied to ``target``, and
    nothing that the broker does afterwards has any effect.

    ``lying``: the disk reports a sync without doing it. The harness has to find the losses.
    """

    def __init__(self, root: Path, lives: int, target: Path, seed: str, witness: int, *, lying: bool) -> None:
        super().__init__(root, lives)
        self._target = target
        self._source = random.Random(seed)
        self._witness = witness
        self._lying = lying
        self._store: MessageStore | None = None
        self._dead = threading.Lock()

    def watch(self) -> None:
        """Note the process's only store, to know how much of its log is flushed."""
        original = MessageStore.open

        @functools.wraps(original)
        def noted(store: MessageStore, *arguments: Any, **options: Any) -> Any:
            self._store = store
            return original(store, *arguments, **options)

        setattr(MessageStore, "open", noted)  # noqa: B010 - a plain assignment to a method is an error for mypy

    def _live(self) -> None:
        self.lives -= 1
        if self.lives >= 0:
            return
        # The caller keeps the lock for good, so that no other thread's sync can end after the cut.
        flushed = self._store.flushed_offset if self._store is not None else 0
        self.cut(self._target, AtRandom(self._source))
        end_process(self._witness, f"cut {flushed}")

    def sync_data(self, fd: int) -> None:
        """Make the data durable, unless the disk lies."""
        if self._lying:
            with self.changing:
                self._live()
            return
        super().sync_data(fd)
