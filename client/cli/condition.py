"""How a broker is: the figures of ``status``, ``top`` and ``check``; which of them are withheld from the user, and
which an older broker does not give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Condition:
    """What GET_BROKER_RUNTIME_INFO answered; a figure that the broker does not give is None."""

    info: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """A figure, None where the broker does not give it."""
        value = self.info.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def withheld(self) -> str:
        """Why the user may not see most figures, and how to grant that; empty if nothing is withheld."""
        said = str(self.info.get("withheld") or "")
        if said or "write_offset" in self.info or "pid" in self.info:  # every broker gives these to who may see them
            return said
        return "the user has no permission: query on the broker; `flintmq user grant NAME --query-broker` grants it"

    def _difference(self, end: str, begin: str) -> float | None:
        high, low = self.number(end), self.number(begin)
        return None if high is None or low is None else max(0, high - low)

    @property
    def log_bytes(self) -> float | None:
        """Size of the CommitLog."""
        return self._difference("write_offset", "min_physical_offset")

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the broker itself, without the page cache that it has mapped."""
        resident = self.number("rss_bytes")
        return None if resident is None else resident - (self.number("mapped_bytes") or 0)

    @property
    def flush_behind_bytes(self) -> float | None:
        """What is written and not on disk."""
        return self._difference("write_offset", "flushed_offset")

    @property
    def reput_behind_bytes(self) -> float | None:
        """What queues and index do not know yet."""
        return self._difference("write_offset", "reput_offset")

    @property
    def index_behind_bytes(self) -> float | None:
        """What the index does not know yet."""
        behind = self.number("index_behind_bytes")
        return self.reput_behind_bytes if behind is None else behind

    def _flush_seconds(self, name: str) -> float | None:
        micros = self.number(name)
        return None if not micros else micros / 1e6  # 0: nothing was flushed in the last minute

    @property
    def flush_p50_seconds(self) -> float | None:
        """Median of the last minute's flushes."""
        return self._flush_seconds("flush_p50_us")

    @property
    def flush_p99_seconds(self) -> float | None:
        """99th percentile of the last minute's flushes."""
        return self._flush_seconds("flush_p99_us")

    @property
    def disk_free_share(self) -> float | None:
        """Free space of the store's file system, 0 to 1."""
        free, total = self.number("disk_free_bytes"), self.number("disk_total_bytes")
        return free / total if free is not None and total else None

    @property
    def disk_runway_seconds(self) -> float | None:
        """How long the disk lasts at the rate of the last minute; None where nothing is written."""
        seconds = self.number("disk_runway_seconds")
        return None if seconds is None or seconds < 0 else seconds

    @property
    def write_refusal(self) -> str:
        """Why no messages are taken at the moment; empty: they are."""
        return str(self.info.get("write_refusal") or "")

    @property
    def errors(self) -> dict[str, int]:
        """How often each error was answered since the start."""
        return {
            name.removeprefix("errors_"): int(count) for name, count in self.info.items() if name.startswith("errors_")
        }
