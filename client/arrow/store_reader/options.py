"""Options of a read of a store's files: its topics, range and treatment of damage."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ....protocol.storage.reader.errors import OnDamage, log_damage, raise_damage

PARTITION_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class StoreReadOptions:
    """Options of a read. Times are ms since 1970 UTC, ranges half-open; None is unbounded."""

    path: str
    topics: tuple[str, ...] | None = None
    pattern: re.Pattern[str] | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    starting_physical_offset: int | None = None
    ending_physical_offset: int | None = None
    partition_bytes: int = PARTITION_BYTES
    include_properties: bool = False
    include_headers: bool = False
    verify_checksums: bool = True
    fail_on_corruption: bool = True

    @property
    def on_damage(self) -> OnDamage:
        return raise_damage if self.fail_on_corruption else log_damage
