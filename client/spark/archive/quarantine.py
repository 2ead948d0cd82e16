"""What of a log was damaged and now holds tombstones: ``flintmq/quarantine/index.json`` of the store says so."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from .errors import SKIP_HINT, CorruptLog

INDEX = Path("flintmq", "quarantine", "index.json")

logger = logging.getLogger(__name__)


def quarantined_ranges(store: Path | None, *, fail_on_corruption: bool) -> list[tuple[int, int]]:
    """(begin, end) of each, in physical offsets, in their order; none where the folder of the store is not known.

    Raises ``CorruptLog`` where neither the index nor its .bak can be read; without ``fail_on_corruption`` that is
    logged, and tombstones are read as messages.
    """
    if store is None:
        return []
    problem: Exception | None = None
    path = store / INDEX
    for each in (path, path.with_name(path.name + ".bak")):
        try:
            holes = json.loads(each.read_text(encoding="utf-8"))["holes"]
            return sorted(
                (int(hole["physicalOffset"]), int(hole["physicalOffset"]) + int(hole["bytes"])) for hole in holes
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = error
    if problem is not None:
        what = f"it cannot be read: {type(problem).__name__}: {problem}"
        if fail_on_corruption:
            raise CorruptLog(path, 0, 0, what, f"Restore it from a backup, or {SKIP_HINT}")
        logger.warning("%s: %s; tombstones are read as messages", path, what)
    return []
