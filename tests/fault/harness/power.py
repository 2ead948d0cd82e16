"""The power cut inside of a running broker: its disk forgets what was not synced, and the process is gone."""

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
    """At the ``lives``-th call the power goes: what is left then is at ``target``, and nothing that the broker does
    from there on has any effect.

    ``lying``: a disk that says it synced and did not. The harness has to find what that loses.
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
        """Know the store, and so how much of the log it holds for flushed. In a process of one broker."""
        original = MessageStore.open

        @functools.wraps(original)
        def noted(store: MessageStore, *arguments: Any, **options: Any) -> Any:
            self._store = store
            return original(store, *arguments, **options)

        setattr(MessageStore, "open", noted)  # noqa: B010 - mypy knows no other way

    def _live(self) -> None:
        self.lives -= 1
        if self.lives >= 0:
            return
        # The lock is held by whoever calls, for good: no other thread's sync ends behind the cut.
        flushed = self._store.flushed_offset if self._store is not None else 0
        self.cut(self._target, AtRandom(self._source))
        end_process(self._witness, f"cut {flushed}")

    def sync_data(self, fd: int) -> None:
        """Durable, unless the disk lies."""
        if self._lying:
            with self.changing:
                self._live()
            return
        super().sync_data(fd)
