"""Search for the next sound record after damage: the search kernel's twin."""

from __future__ import annotations

from tests.twins.log import Stopped, read_record


def find_record(log: bytes, at: int, end: int, file_base: int, store_ms_min: int) -> int:
    """Return the first position with a sound record stored at ``store_ms_min`` or later, else ``end``."""
    while at < end:
        try:
            record = read_record(log, at, file_base + at, check_body=True)
        except Stopped:
            pass
        else:
            if record.store_timestamp >= store_ms_min:
                return at
        at += 1
    return end
